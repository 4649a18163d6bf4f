"""Prove the lower bound of a stored fewbit file from the file alone. `actfit check --prove` calls it.

It searches for no table: it refines cells, which up to 4 bits end at the stored borders, until their bound reaches the
stored one. The bound is rigorous (`certificate`, `exact`, `dual`) for a uniform weight only.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.certificate import lower_bound
from actfit.fitting.fewbit.exact import ExactCells
from actfit.fitting.fewbit.measure import MAX_CELLS, Measure
from actfit.fitting.fewbit.search import SHARPEST, STUCK, grid_optimum, target_gap
from actfit.fitting.provenance import stored_function
from actfit.fitting.weights import uniform
from actfit.fitting.words import counted, percent

UNPROVEN = "error.lower_bound in ball arithmetic"


def prove(document: dict[str, Any], report: Callable[[str], None]) -> tuple[list[str], list[str]]:
    """Problems in the lower bound of a fewbit document that passed its schema, and what could not be proven.

    Parameters
    ----------
    document : dict
        As `coefficients.load` gives it.
    report : callable
        Called with a short text of what is being done.
    """
    options, stored = document["options"], document["error"]["lower_bound"]
    if stored == 0:  # 0 is always a lower bound
        return [], []
    weight = uniform()
    if options["weight"] != weight.label:
        return [], [f"{UNPROVEN}, as the weight is not uniform"]
    if options["levels"] == "even":
        return [], [f"{UNPROVEN}, as f' is known to be even at some points only"]
    lo, hi = map(float, options["domain"])
    try:
        borders = document["solution"]["borders"] if options["bits"] <= 4 else []  # more would cost too many cells
        marked = replace(weight, landmarks=tuple(map(float, borders)))
        measure = Measure(stored_function(document["function"]), marked, (lo, hi))
        exact = ExactCells(measure)
        if not exact.works:
            return [], [f"{UNPROVEN}, as f' has none at some points of the domain"]
        kind = 2 ** options["bits"], options["levels"] != "contiguous"
        error = document["error"]["l2_squared"]
        bound = _proven(exact, measure, kind, (stored, error), report)
    except InputError as error:
        return [str(error)], []
    if bound < stored:
        return [f"error.lower_bound must be at most {bound!r}, which is proven in ball arithmetic, got {stored!r}"], []
    return [], []


def _proven(
    exact: ExactCells,
    measure: Measure,
    kind: tuple[int, bool],
    ends: tuple[float, float],
    report: Callable[[str], None],
) -> float:
    """The best bound on ever finer cells, until it reaches the first of `ends`; the second is the table's error.

    `kind`: how many levels, and whether shared.
    """
    sought, error = ends
    spare, bound, last = measure.first_spare(kind[0]), 0.0, math.inf
    while True:
        cells = measure.cells(spare)
        missing = f", {percent((sought - bound) / sought)} below the stored bound" if bound else ""
        report(f"proof on {counted(len(cells.lo), 'cell')}{missing}")
        known, inside = exact.of(cells)
        _, cost, slack = grid_optimum(measure, known, *kind)
        reached, gain = lower_bound(measure, known, kind[0], cost, slack, kind[1], inside)
        bound = max(bound, reached)
        if bound >= sought or gain > STUCK * last or len(cells.lo) == MAX_CELLS:
            return bound
        # On fine cells the bound is below the error by about the gain, so the gain may be as large as this difference.
        sharper = 0.8 * max(error - sought, target_gap(kind[0]) * error) / gain
        spare = min(spare, float(known.spare.max())) * min(0.5, max(sharper, SHARPEST))
        last = gain
