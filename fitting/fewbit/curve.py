"""f' on a domain, cut into runs on which it is smooth and monotone."""

import math
from dataclasses import dataclass
from functools import lru_cache

import flint
import numpy as np
from numpy.typing import NDArray

from actfit.fitting.activations import Activation
from actfit.fitting.activations.activation import Branch
from actfit.fitting.activations.calculus import SCAN_POINTS, Piece, middle
from actfit.fitting.activations.singularities import singular
from actfit.fitting.activations.tape import Array
from actfit.fitting.errors import InputError

Indices = NDArray[np.int64]
STEEPEST, FLATTEST = 1e100, 1e-100  # of the largest |f'|
ROUNDING = 16 * float(np.finfo(np.float64).eps)  # of f', relative
MOST_RUNS = SCAN_POINTS // 4  # with more, turns are about as near to each other as the points of the scan for them
LOOSE = 1.1  # how far a known bound of |f''| may overestimate the variation of f'


@dataclass(frozen=True)
class Run:
    """A closed interval inside one smooth piece on which f' is monotone."""

    # lo, hi: its ends
    lo: float
    hi: float
    piece: Piece
    direction: int  # 1 where f' rises, -1 where it falls, 0 where it is constant
    # first, last: f' at the ends
    first: float
    last: float

    @property
    def flat(self) -> bool:
        return bool(self.piece.d2.expression == 0)


class Curve:
    """f' of `activation` on the finite interval [lo, hi], with its least and greatest value at ends of runs.

    Raises `InputError` where f or f' is undefined or not finite at an end of a run, or f' turns too often.
    """

    def __init__(self, activation: Activation, lo: float, hi: float) -> None:
        self.activation, self.lo, self.hi = activation, lo, hi
        _check_poles(activation, lo, hi)
        branches, runs = _branches(activation, lo, hi), []
        if len(branches) > MOST_RUNS:
            raise InputError(
                f"f' must turn at most {MOST_RUNS} times on the domain, got at least {len(branches)}; try a smaller"
                " --domain"
            )
        for branch in branches:
            a, b = branch.lo, branch.hi
            inside = middle(a, b)
            piece = next(piece for piece in activation.pieces if piece.lo < inside < piece.hi)
            first, last = (_finite(piece, end, inside, (lo, hi)) for end in (a, b))
            runs.append(Run(a, b, piece, branch.direction, first, last))
        self.runs = tuple(runs)
        ends = [end for run in runs for end in (run.first, run.last)]
        self.low, self.high = min(ends), max(ends)
        top = max(-self.low, self.high)
        if top < FLATTEST and (top > 0 or not self.is_step):
            raise InputError(
                f"f' must reach {FLATTEST:g} in size on the domain, where squares do not underflow, got at most"
                f" {top:g}; try --domain, or scale f up"
            )
        self.edges: Array = np.array([lo, *(run.hi for run in runs)])

    @property
    def is_step(self) -> bool:
        """Whether f' is a step function here."""
        return all(run.flat for run in self.runs)

    def run_at(self, points: Array) -> Indices:
        """Index of the run that holds the left neighbourhood of each point; 0 for the domain's start."""
        return np.clip(np.searchsorted(self.edges, points, side="left") - 1, 0, len(self.runs) - 1)

    def derivatives(self, points: Array, runs: Indices) -> Array:
        """f' at `points`, each row of them (each point, if they are a vector) evaluated on its run of `runs`."""
        return self._on_runs(points, runs, "d1")

    def second_derivatives(self, points: Array, runs: Indices) -> Array:
        """f'' likewise."""
        return self._on_runs(points, runs, "d2")

    def values(self, points: Array, runs: Indices) -> Array:
        """f likewise."""
        return self._on_runs(points, runs, "f")

    def _on_runs(self, points: Array, runs: Indices, tape: str) -> Array:
        result = np.empty_like(points)
        for index in np.unique(runs):
            on_run = runs == index
            result[on_run] = getattr(self.runs[index].piece, tape).numpy(points[on_run])
        return result

    def crossings(self, heights: Array) -> list[tuple[Indices, Array]]:
        """For each run: which of the increasing `heights` f' crosses strictly inside it, and where.

        Positions are ordered along x. Bisection to the last bit: every root is a float64 next to the true one.
        """
        by_run = []
        for index, run in enumerate(self.runs):
            low, high = min(run.first, run.last), max(run.first, run.last)
            crossed = np.flatnonzero((low < heights) & (heights < high))
            if run.last < run.first:
                crossed = crossed[::-1]
            by_run.append((crossed, self._bisect(index, heights[crossed])))
        return by_run

    def _bisect(self, index: int, heights: Array) -> Array:
        run = self.runs[index]
        lo: Array
        hi: Array
        lo, hi = np.full(heights.shape, run.lo), np.full(heights.shape, run.hi)
        rising = run.last > run.first
        while True:
            mid = lo + (hi - lo) / 2
            if not np.any((lo < mid) & (mid < hi)):
                return mid
            left = (run.piece.d1.numpy(mid) < heights) == rising
            lo, hi = np.where(left, mid, lo), np.where(left, hi, mid)

    def ranges(self, lo: Array, hi: Array, runs: Indices, bends: Array | None = None) -> tuple[Array, Array, Array]:
        """Enclosures of f' over the cells [lo, hi], as (centre, width, bends), proven in ball arithmetic.

        Where f'' is of one sign, f' lies between its values at the ends, and `bends` is a bound of |f''|; it is NaN
        elsewhere. With |f''| <= L on a cell of width h, f' lies within L·h/2 of their mean. Where no finite L is found
        (a square root's end), the enclosure of f' itself is taken. Width inf: there is neither.
        `bends`, if given, are bounds on larger cells; they are computed again only where they have become loose.
        Raises `InputError` where f' turns inside a run: then the search for runs has missed a turning point.
        """
        ends = self.derivatives(lo, runs), self.derivatives(hi, runs)
        between = np.abs(ends[1] - ends[0]) + ROUNDING * np.maximum(np.abs(ends[0]), np.abs(ends[1]))
        bends = np.full(lo.shape, math.nan) if bends is None else bends.copy()
        bends[np.isin(runs, [index for index, run in enumerate(self.runs) if run.flat])] = 0.0
        centre, width = (ends[0] + ends[1]) / 2, np.minimum(bends * (hi - lo) * (1 + 1e-12), between)
        for i in np.flatnonzero(~(bends * (hi - lo) <= LOOSE * between)).tolist():
            run = self.runs[runs[i]]
            ball = hull(lo[i], hi[i])
            bend = run.piece.d2.arb(ball)
            if bend.is_finite():
                if bend * run.direction < 0:
                    raise InputError(f"f' turns too often near x = {lo[i]:.6g} to be followed; try a smaller --domain")
                steepest = float(abs(bend).upper()) * (1 + 1e-12)
                width[i], bends[i] = steepest * (hi[i] - lo[i]), math.nan
                if not bend.contains(0):
                    width[i], bends[i] = min(width[i], between[i]), steepest
                continue
            derivative = run.piece.d1.arb(ball)
            finite = derivative.is_finite()
            centre[i], bends[i] = float(derivative.mid()) if finite else 0.0, math.nan
            width[i] = 2 * float(derivative.rad()) * (1 + 1e-12) if finite else math.inf
        return centre, width, bends


@lru_cache(maxsize=64)
def _branches(activation: Activation, lo: float, hi: float) -> tuple[Branch, ...]:
    """Cached, as the search, the judge and the report each ask for the same curve."""
    return activation.derivative_runs_within(lo, hi)


def hull(lo: float, hi: float) -> flint.arb:
    return flint.arb(lo / 2 + hi / 2, (hi - lo) / 2 * (1 + 1e-9) + 1e-300)


def _check_poles(activation: Activation, lo: float, hi: float) -> None:
    for piece in activation.pieces:
        for pole in map(float, singular(piece.f.expression)):
            if max(lo, piece.lo) <= pole <= min(hi, piece.hi):
                raise InputError(
                    f"f and f' must be finite on the domain, and at x = {pole:g} a divisor of f is 0: leave it out by"
                    f" --domain{_beside(piece, pole, (lo, hi))}"
                )


def _beside(piece: Piece, at: float, domain: tuple[float, float]) -> str:
    """The numbers of a domain that leaves the point out: the longer side of it on which f is finite; "" if none is."""
    sides = [(at + (end - at) / 100, end) for end in reversed(domain) if end != at]
    finite = [side for side in sides if np.isfinite(piece.f.numpy(np.linspace(*side, 9))).all()]
    if not finite:
        return ""
    longer = max(finite, key=lambda side: abs(side[1] - side[0]))
    return f" {min(longer):g} {max(longer):g}"


def _finite(piece: Piece, end: float, inside: float, domain: tuple[float, float]) -> float:
    """f' at the end of a run, approached from inside it."""
    for value, at in ((piece.f.numpy(np.array(inside)), inside), (piece.d1.numpy(np.array(end)), end)):
        if not np.isfinite(value):
            raise InputError(
                f"f and f' must be finite on the domain, got {value} near x = {at:g}; try --domain"
                f"{_beside(piece, at, domain)}"
            )
    if abs(value) > STEEPEST:
        raise InputError(
            f"f' must be at most {STEEPEST:g} in size, where squares do not overflow, got {value:g} near x = {end:g};"
            " try --domain, or scale f down"
        )
    return float(value)
