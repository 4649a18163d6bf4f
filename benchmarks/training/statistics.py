"""Whether a variant's final loss equals stock's: paired seeds, and a test that can show equivalence.

Two one-sided t-tests (TOST) of the differences d between a variant's final loss and stock's with the same seed:
equivalent if both "mean of d <= -margin" and "mean of d >= margin" are rejected at ALPHA. p is the larger of the two.

The margin is the standard deviation of stock's final loss between seeds, fixed before any results: within
it, a variant changes the loss by less than another seed does. It is estimated from the same seeds, hence rough.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

ALPHA = 0.05  # of the test; differences have intervals of 95 %


@dataclass(frozen=True)
class Comparison:
    """Of a variant with stock: mean difference (variant - stock) over `seeds` seeds, its 95 % interval, and p of TOST.

    Numbers are NaN with fewer than two seeds, or if a training of either did not end with a finite loss.
    """

    seeds: int
    difference: float
    low: float
    high: float
    margin: float
    p: float
    diverged: int = 0

    @property
    def verdict(self) -> str:
        """In words. Measurably better or worse: the interval excludes 0; an equivalent variant can be that, too."""
        if self.diverged:
            return f"diverged with {self.diverged} of {self.seeds} seeds"
        if math.isnan(self.p):
            return "too few seeds"
        if self.low == self.high == 0:
            return "the same to the last bit"
        side = "worse" if self.low > 0 else "better" if self.high < 0 else ""
        if self.p < ALPHA:
            return "equivalent" + (f", but measurably {side}" if side else "")
        if max(self.low, -self.high) > self.margin:
            return f"{side} by more than the margin"
        return f"measurably {side}, not shown to be equivalent" if side else "not shown to be equivalent"


def compare(variant: Mapping[int, float | None], stock: Mapping[int, float | None]) -> Comparison:
    """Compare a variant's numbers with stock's over the seeds that both have."""
    seeds = sorted(set(variant) & set(stock))
    pairs = [(variant[seed], stock[seed]) for seed in seeds]
    whole = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(whole) < max(2, len(pairs)):
        return Comparison(len(seeds), *[math.nan] * 5, diverged=len(pairs) - len(whole))
    margin = statistics.stdev(b for _, b in whole)
    differences = [a - b for a, b in whole]
    mean, low, high = interval(differences)
    return Comparison(len(seeds), mean, low, high, margin, equivalence(differences, margin))


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and the ends of its 95 % interval by Student's t."""
    mean = statistics.fmean(values)
    half = float(stats.t.ppf(0.975, len(values) - 1)) * _error(values)
    return mean, mean - half, mean + half


def equivalence(differences: Sequence[float], margin: float) -> float:
    """p of TOST: the chance of differences so far inside the margin if their true mean is on its edge."""
    mean, error = statistics.fmean(differences), _error(differences)
    inside = margin - abs(mean)  # the nearer edge has the larger p
    if error == 0:
        return 0.0 if inside > 0 else 1.0
    return float(stats.t.sf(inside / error, len(differences) - 1))


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean."""
    return statistics.stdev(values) / math.sqrt(len(values))
