"""Recompute the numbers of stored joint codes. `actfit check` calls `verify`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.verify import ROUNDED
from actfit.fitting.joint import judge
from actfit.fitting.joint.solve import fit_joint
from actfit.fitting.joint.table import Table
from actfit.fitting.provenance import differences, stored_function
from actfit.fitting.weights import Weight, stored_weight

FINEST = 1e-5  # the smallest target gap of a search here


def verify(document: dict[str, Any], weights: Sequence[Weight] = ()) -> tuple[list[str], list[str]]:
    """Problems in the numbers of a joint document that passed its schema, and what could not be verified.

    The lower bound is proven again by another search. Samples and Python densities are not stored: nothing can be
    verified unless they are among `weights`.
    """
    solution, stored, options = document["solution"], document["error"], document["options"]
    try:
        weight, domain = stored_weight(options["weight"], weights), tuple(options["domain"])
        if weight is None:
            return [], ["errors, as the weight is not in the file (samples: --weight FILE)"]
        activation = stored_function(document["function"])
        judged = judge.errors(activation, weight, domain, Table(**{key: np.array(solution[key]) for key in solution}))
        recomputed = {"derivative": judged.derivative, "output": judged.output, **judge.shares(judged)}
        problems = differences(stored, recomputed, judge.TOLERANCE)
        if problems or stored["lower_bound"] == 0:  # 0 is always a lower bound
            return problems, []
        # Half of the stored gap, so that another machine's rounding does not stop the search a round too early.
        search = partial(fit_joint, activation, options["bits"], output_weight=options["lambda"])
        again = search(weight=weight, domain=domain, target_gap=max(FINEST, stored["gap"] / 2))
    except InputError as error:
        return [str(error)], []
    if stored["lower_bound"] <= again.error.lower_bound * (1 + ROUNDED):
        return [], []
    proven = again.error.lower_bound
    return [f"error.lower_bound must be at most {proven!r}, which is proven again, got {stored['lower_bound']!r}"], []
