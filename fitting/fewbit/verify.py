"""Recompute the numbers of stored fewbit files. `actfit check` calls `verify`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.curve import Curve
from actfit.fitting.fewbit.judge import WEIGHTED_TOLERANCE, l2_squared, linf
from actfit.fitting.fewbit.solve import BOUND_DIGITS, Errors, fit
from actfit.fitting.fewbit.steps import Steps
from actfit.fitting.provenance import differences, stored_function
from actfit.fitting.weights import Weight, stored_weight

ROUNDED = 10.0 ** (1 - BOUND_DIGITS)  # the relative difference that two machines' bounds may have
FINEST = 1e-6  # the smallest target gap of a search here: it takes seconds


def verify(document: dict[str, Any], weights: Sequence[Weight] = ()) -> tuple[list[str], list[str]]:
    """Problems in the numbers of a fewbit document that passed its schema, and what could not be verified.

    The lower bound is proven again by another search, and by a finer one if that proves less. Samples and Python
    densities are not stored: neither the bound nor l2_squared can be verified unless they are among `weights`.
    """
    solution, stored, options = document["solution"], document["error"], document["options"]
    try:
        activation = stored_function(document["function"])
        domain = tuple(options["domain"])
        steps = Steps(np.array(solution["borders"]), np.array(solution["codes"]), np.array(solution["levels"]))
        largest, place = linf(Curve(activation, *domain), steps)
        problems = differences(stored, {"linf": largest, "linf_at": place}, 0.0)
        weight = stored_weight(options["weight"], weights)
        if weight is None:
            numbers = "error.l2_squared, error.lower_bound and error.gap"
            return problems, [f"{numbers}, as the weight is not in the file (samples: --weight FILE)"]
        tolerance = 0.0 if weight.height is not None else WEIGHTED_TOLERANCE
        problems += differences(stored, {"l2_squared": l2_squared(activation, weight, domain, steps)}, tolerance)
        if problems or stored["lower_bound"] == 0:  # 0 is always a lower bound
            return problems, []
        search = partial(fit, activation, options["bits"], levels=options["levels"], weight=weight, domain=domain)
        proven = search().error
        if _within(stored["lower_bound"], proven.lower_bound):
            return [], []
        proven = search(target_gap=max(FINEST, stored["gap"] / 2)).error  # the bound may come from a finer search
    except InputError as error:
        return [str(error)], []
    return _judged(stored, proven)


def _within(bound: float, proven: float) -> bool:
    return bound <= proven * (1 + ROUNDED)


def _judged(stored: dict[str, Any], proven: Errors) -> tuple[list[str], list[str]]:
    """The result of `verify` for a bound that the usual search does not reach; `proven` is from a finer one."""
    bound = stored["lower_bound"]
    if not _within(bound, proven.l2_squared):
        rule = f"must be at most {proven.l2_squared!r}, the error of a table that was found"
    elif stored["gap"] < FINEST:
        return [], [f"error.lower_bound and error.gap, as searches go no further than a gap of {FINEST:g}"]
    elif _within(bound, proven.lower_bound):
        return [], []
    else:
        rule = f"must be at most {proven.lower_bound!r}, which is proven again"
    return [f"error.lower_bound {rule}, got {bound!r}"], []
