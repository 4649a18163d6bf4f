"""The best function of K levels on a grid of cells, on ever finer grids until a bound shows how good it is."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from actfit.fitting.fewbit.certificate import lower_bound
from actfit.fitting.fewbit.dp import partition
from actfit.fitting.fewbit.dual import priced_partition
from actfit.fitting.fewbit.exact import ExactCells
from actfit.fitting.fewbit.measure import MAX_CELLS, Cells, Measure
from actfit.fitting.fewbit.polish import NOISE
from actfit.fitting.fewbit.refine import refine
from actfit.fitting.fewbit.steps import Steps, contiguous_steps, nearest_level_steps, tidy
from actfit.fitting.words import counted, percent

TARGET_GAPS = (16, 9e-6, 9e-5)  # gap up to 16 levels, and above; 1e-5 and 1e-4 with the rounding of the stored bound
MANY = 16  # levels, above which one layer with a price is cheaper than a layer for each level
STUCK = 0.9  # if the gain, which should halve, stays above this part of the last round's, cells get no narrower
SHARPEST = 1 / 64  # the least factor of `spare` from round to round: about 8 times the cells


def _silent(_: str) -> None:
    pass


@dataclass(frozen=True)
class Effort:
    """How far a search goes."""

    gap: float | None = None  # relative, at which it ends; None: the one of `target_gap`
    deadline: float = math.inf  # of `time.monotonic`, after which no further round begins
    sought: float = math.inf  # the error that suffices; the search ends once the lower bound is above it
    report: Callable[[str], None] = _silent  # called with a text in each round

    def late(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.deadline


def target_gap(k: int) -> float:
    """The gap at which a search for k levels ends."""
    most, few, many = TARGET_GAPS
    return few if k <= most else many


@dataclass(frozen=True)
class SearchResult:
    """The outcome of a search."""

    steps: Steps  # the best
    error: float  # their error by the search's measure
    bound: float  # a lower bound of the error
    exact: bool = False  # whether they are f' itself
    cut_short: bool = False  # whether time was up before the search was done


def search(measure: Measure, k: int, shared: bool, effort: Effort) -> SearchResult:
    """f' itself if it has few enough steps; else the refined grid optimum, on finer cells until the gap is small."""
    steps = _exact_steps(measure, k, shared)
    if steps is not None:
        return SearchResult(steps, 0.0, 0.0, exact=True)
    exact = ExactCells(measure) if measure.weight.height is not None else None
    aim = target_gap(k) if effort.gap is None else effort.gap
    spare, last, rounds = measure.first_spare(k), math.inf, 0
    best: tuple[float, Steps] | None = None
    bound = 0.0
    while True:
        cells = measure.cells(spare, effort.late if best else None)
        if best is not None and effort.late():
            return SearchResult(best[1], best[0], bound, cut_short=True)
        rounds += 1
        gap = f", gap {percent((best[0] - bound) / best[0])}" if best and best[0] else ""
        effort.report(f"round {rounds} on {counted(len(cells.lo), 'cell')}{gap}")
        known, inside = exact.of(cells) if exact and exact.works else (cells, None)
        grid_steps, cost, slack = grid_optimum(measure, known, k, shared)
        steps = _refined(measure, grid_steps, shared)
        error = steps.error(measure)
        if best is None or error < best[0]:
            best = (error, steps)
        reached, gain = lower_bound(measure, known, k, cost, slack, shared, inside)
        bound, target = max(bound, reached), aim * best[0]
        ends_here = best[0] - bound <= target or gain <= target / 4 or gain > STUCK * last or len(cells.lo) == MAX_CELLS
        if ends_here or bound > effort.sought:
            return SearchResult(best[1], best[0], bound)
        # Finer cells lessen the gain, in proportion to `spare`, but not the rounding that keeps the two apart too.
        rest = max(0.0, best[0] - reached - gain)
        sharper = 0.8 * max(target - rest, target / 4) / gain
        spare = min(spare, float(known.spare.max())) * min(0.5, max(sharper, SHARPEST))
        last = gain


def _exact_steps(measure: Measure, k: int, shared: bool) -> Steps | None:
    """f' itself, where it is a step function with few enough values (or intervals, for contiguous)."""
    runs = measure.curve.runs
    if not measure.curve.is_step:
        return None
    values, codes = np.unique([run.first for run in runs], return_inverse=True)
    steps = tidy(np.array([run.lo for run in runs[1:]]), codes, values)
    needed = len(steps.levels) if shared else len(steps.codes)
    return steps if needed <= k else None


def _refined(measure: Measure, steps: Steps, shared: bool) -> Steps:
    """`steps` refined; unchanged where that would divide samples worse than the grid does."""
    if shared:
        return refine(measure, nearest_level_steps(measure.curve, steps.levels), shared)
    moved = refine(measure, contiguous_steps(measure.curve, steps, steps.levels), shared)
    return steps if steps.error(measure) < moved.error(measure) * (1 - NOISE) else moved


def grid_optimum(measure: Measure, cells: Cells, k: int, shared: bool) -> tuple[Steps, float, float]:
    """The cheapest K-level function that is constant on cells, its cost between cells, and rounding slack.

    Shared levels come without borders: each x uses the level nearest to f'(x).
    """
    weighted = np.flatnonzero(cells.moments.mass > 0)
    order = weighted[np.argsort(cells.moments.mean[weighted], kind="stable")] if shared else weighted
    atoms = cells.moments.mean[order], cells.moments.mass[order]
    best = (priced_partition(*atoms, k) if k > MANY else None) or partition(*atoms, k)
    groups = np.zeros(len(order), dtype=np.int64)
    groups[best.cuts] = 1
    groups = np.cumsum(groups)
    levels = cells.moments[order].merged(groups, len(best.cuts) + 1).mean
    borders = np.zeros(0) if shared else cells.lo[order][best.cuts]
    return Steps(borders, np.arange(len(levels)), levels), best.cost, best.slack
