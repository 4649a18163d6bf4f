"""The numbers of stored fewbit files, computed again. `python -m coefficients check` calls `verify`."""

from typing import Any

import numpy as np

from fitting.errors import InputError
from fitting.fewbit.curve import Curve
from fitting.fewbit.judge import WEIGHTED_TOLERANCE, l2_squared, linf
from fitting.fewbit.solve import BOUND_DIGITS, fit
from fitting.fewbit.steps import Steps
from fitting.provenance import differences, stored_function
from fitting.weights import UNNAMED, named

ROUNDED = 10.0 ** (1 - BOUND_DIGITS)  # by how much two machines' bounds may differ


def verify(document: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What is wrong with the numbers of a fewbit document that passed its schema, and what could not be verified.

    The lower bound is proven again, by another search. Samples and Python densities are not stored, so under them
    neither it nor l2_squared can be.
    """
    solution, stored, options = document["solution"], document["error"], document["options"]
    try:
        activation = stored_function(document["function"])
        domain = tuple(options["domain"])
        steps = Steps(np.array(solution["borders"]), np.array(solution["codes"]), np.array(solution["levels"]))
        largest, place = linf(Curve(activation, *domain), steps)
        problems = differences(stored, {"linf": largest, "linf_at": place}, 0.0)
        if options["weight"].startswith(UNNAMED):
            return problems, ["error.l2_squared, error.lower_bound and error.gap, as the weight is not in the file"]
        weight = named(options["weight"])
        tolerance = 0.0 if weight.height is not None else WEIGHTED_TOLERANCE
        problems += differences(stored, {"l2_squared": l2_squared(activation, weight, domain, steps)}, tolerance)
        if problems or stored["lower_bound"] == 0:  # which is always one
            return problems, []
        proven = fit(activation, options["bits"], levels=options["levels"], weight=weight, domain=domain).error
    except InputError as error:
        return [str(error)], []
    if stored["lower_bound"] > proven.lower_bound * (1 + ROUNDED):
        rule = f"must be at most {proven.lower_bound!r}, which is proven again"
        problems.append(f"error.lower_bound {rule}, got {stored['lower_bound']!r}")
    return problems, []
