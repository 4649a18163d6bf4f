"""Prove the lower bound of a stored joint code from the file alone. `actfit check --prove` calls it.

It searches for no code: it refines cells until their bound reaches the stored one. The bound is rigorous
(`certificate`, `exact`) under a uniform or normal weight.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.curve import ROUNDING
from actfit.fitting.fewbit.dp import partition
from actfit.fitting.fewbit.measure import MAX_CELLS
from actfit.fitting.fewbit.prove import UNPROVEN
from actfit.fitting.joint.certificate import gain_inside
from actfit.fitting.joint.exact import ExactPlane, ProvenCells
from actfit.fitting.joint.plane import Plane
from actfit.fitting.provenance import stored_function
from actfit.fitting.weights import UNNAMED, named
from actfit.fitting.words import counted, percent

HALF = 0.5  # of the way from the bound to the error: what borders inside cells may gain at first
FINEST = 1e-5  # the gap at which proofs end; it takes seconds
STUCK = 0.9  # if the gain, which should halve, stays above this part of the last round's, cells get no narrower


def prove(document: dict[str, Any], report: Callable[[str], None]) -> tuple[list[str], list[str]]:
    """Problems in the lower bound of a joint document that passed its schema, and what could not be proven.

    Parameters
    ----------
    document : dict
        As `coefficients.load` gives it.
    report : callable
        Called with a short text of what is being done.
    """
    options, stored, error = document["options"], document["error"]["lower_bound"], document["error"]["total"]
    if stored == 0:  # 0 is always a lower bound
        return [], []
    if options["weight"].startswith(UNNAMED):
        return [], [f"{UNPROVEN}, as the weight is not in the file"]
    try:
        weight, ends = named(options["weight"]), tuple(map(float, options["domain"]))
        if weight.height is None and weight.normal is None:
            return [], [f"{UNPROVEN}, as the weight is neither uniform nor normal"]
        plane = Plane(stored_function(document["function"]), options["lambda"], weight, (ends[0], ends[1]))
        exact = ExactPlane(plane, options["lambda"])
        if not exact.works:
            return [], [f"{UNPROVEN}, as f or f' has none at some points of the domain"]
        bound = _proven(exact, plane, 2 ** options["bits"], (stored, error), report)
    except InputError as problem:
        return [str(problem)], []
    if bound < stored < error and (error - stored) < FINEST * error:
        return [], [f"{UNPROVEN}, as proofs go no further than a gap of {FINEST:g}"]
    if bound < stored:
        return [f"error.lower_bound must be at most {bound!r}, which is proven in ball arithmetic, got {stored!r}"], []
    return [], []


def _proven(exact: ExactPlane, plane: Plane, k: int, ends: tuple[float, float], report: Callable[[str], None]) -> float:
    """The best bound for k levels on ever finer cells, until it reaches the first of `ends`; the other is the error."""
    sought, error = ends
    bound, last = 0.0, math.inf
    length = exact.of(exact.cells(plane.mass * plane.reach / k)).length
    spare = HALF * max(error - sought, FINEST * error) / length
    while True:
        cells = exact.cells(spare)
        missing = f", {percent((sought - bound) / sought)} below the stored bound" if bound else ""
        report(f"proof on {counted(len(cells.lo), 'cell')}{missing}")
        reached, gain = _bound(exact.of(cells), k)
        bound = max(bound, reached)
        if bound >= min(sought, (1 - FINEST) * error) or not gain <= STUCK * last or len(cells.lo) == MAX_CELLS:
            return bound
        spare, last = spare / 2, gain


def _bound(proven: ProvenCells, k: int) -> tuple[float, float]:
    """A lower bound of every code's error, at least 0, and the part of its loss that is due to the cells' size."""
    weighted = np.flatnonzero(proven.mass > 0)
    best = partition(proven.mean[weighted], proven.mass[weighted], k)
    gain = gain_inside(k, proven.length, proven.diameter, proven.spare, proven.spread)
    rounding = ROUNDING * (abs(proven.inside) + best.cost + best.slack + gain)  # of the next line, and of the gain
    return max(0.0, proven.inside + best.cost - best.slack - gain - rounding), gain
