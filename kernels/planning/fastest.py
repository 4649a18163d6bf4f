"""Searches the fastest way to train within limits of memory, with a gradient that errs by no more than a bound.

Blocks are recomputed from the first one on, whose backward passes come last, when most memory is free again; they run
as stock from the last one back; those between are captured, with codes where need be. For each such mixture that is
observed an integer programme finds the fewest codes. What is worth observing is estimated first, by weighted means of
the bytes that steps take in which all blocks go one way.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import accumulate
from math import inf

import numpy as np
from numpy.typing import NDArray

from actfit.kernels.methods.planned import WIDTHS
from actfit.kernels.planning.blocks import Blocks, BlockWays
from actfit.kernels.planning.budget import Limits
from actfit.kernels.planning.prices import Parts, Prices
from actfit.kernels.planning.search import Candidate, smallest
from actfit.kernels.planning.sensitivity import Bits, completed
from actfit.kernels.planning.solve import BITS_OR_WHOLE, InfeasibleError, Solution, infeasible, with_fewest_codes
from actfit.kernels.planning.step import Step
from actfit.kernels.planning.task import Task

OBSERVED = 6  # mixtures that are observed; the models tried needed at most 4
GAIN = 0.005  # of the time of a step, for which another one is observed
TRIES = 4  # solutions that are checked on other samples
MARGIN = 0.9  # of the bound that a solution is sought within after one that exceeded it

Amounts = NDArray[np.float64]  # bytes that are saved for backward, and at the peak of a step


def fastest(
    task: Task, limit: Limits, bound: float, prices: Callable[[Blocks], Prices], low_peak: bool = False
) -> Candidate:
    """The candidate with the shortest step whose squared error is within the bound, on other samples, too.

    Of steps with a low peak or without, see `Task.step`. Raises InfeasibleError if none was found within the limits.
    """
    if bound:
        smallest(task, limit, low_peak)  # raises before errors are measured, which takes time
    search = _Search(task, limit, bound, prices, low_peak)
    search.observe(0, 0)
    for _ in range(OBSERVED - 1):
        if (mixture := search.promising()) is None:
            break
        search.observe(*mixture)
    if not search.found:  # those of the fewest bytes
        search.observe(len(search.blocks), 0)
    for candidate in sorted(search.found.values(), key=lambda candidate: candidate.time):
        if (checked := search.checked(candidate)) is not None:
            return checked
    raise InfeasibleError(infeasible(search.again, limit, WIDTHS[0] if bound else None))


class _Search:
    """The mixtures that were observed, by the numbers of blocks that are recomputed, and that run as stock."""

    def __init__(
        self, task: Task, limit: Limits, bound: float, prices: Callable[[Blocks], Prices], low_peak: bool
    ) -> None:
        self.task, self.limit, self.bound, self.low_peak = task, limit, bound, low_peak
        self.blocks = tuple(task.blocks)
        self.prices = prices(self.blocks)
        self.passed = [0.0, *accumulate(self.prices.shares[name] for name in self.blocks)]
        self.captured = task.step(self.ways(0, 0), low_peak)
        self.again = task.step(self.ways(len(self.blocks), 0), low_peak)
        self.errors = task.errors((), self.captured) if bound else {}
        self.error = {bits: sum(by_bits[bits] for by_bits in self.errors.values()) for bits in WIDTHS}
        self.elements = _elements(self.captured) or 1
        # By bits: of steps in which all blocks are captured, and in which all are recomputed.
        self.alone = {bits: (_amounts(self.captured, bits), _amounts(self.again, bits)) for bits in BITS_OR_WHOLE}
        self.tried: set[tuple[int, int]] = set()
        self.found: dict[tuple[int, int], Candidate] = {}
        self.stock = np.array([task.stock.kept, task.stock.peak], dtype=float)
        self.off = np.zeros(2)  # what was observed last, above what had been estimated

    def ways(self, again: int, stock: int) -> BlockWays:
        """What is done with blocks, by numbers; exact if there may be no codes."""
        return BlockWays(self.blocks[:again], self.blocks[len(self.blocks) - stock :], not self.bound)

    def observe(self, again: int, stock: int) -> None:
        """Observe a step, and solve for its bits."""
        ways = self.ways(again, stock)
        step = self.task.step(ways, self.low_peak)
        self.off = _amounts(step, WIDTHS[0]) - self._estimated(self._parts(again, stock), WIDTHS[0])
        self.tried.add((again, stock))
        errors = completed(self.errors, step) if self.errors else {}
        candidate = self._solved(Candidate(ways, step, errors, measured=self.prices.measured), self.bound)
        if candidate is not None:
            self.found[again, stock] = candidate

    def _solved(self, candidate: Candidate, bound: float) -> Candidate | None:
        """The candidate with the fewest codes within a bound; None if none is within the limits."""
        ways, step, errors, *_ = candidate
        if bound and errors:
            solution = with_fewest_codes(step, errors, self.limit, bound)
        else:
            solution = Solution(step.everywhere(None), 0.0, 0.0) if self.limit.hold(step, None) else None
        if solution is None:
            return None
        coded = _elements(step, solution.bits) / self.elements
        parts = self._parts(len(ways.recomputed), len(ways.unchanged))
        return candidate._replace(solution=solution, time=self.prices.time(parts, coded))

    def promising(self) -> tuple[int, int] | None:
        """The mixture with the shortest estimated step that was not observed; None if it gains nothing.

        As long as none is known to be within the limits, the one of the fewest bytes is the last to be tried.
        """
        best = min((candidate.time for candidate in self.found.values()), default=inf)
        time, again, stock = min(self._estimates(), default=(inf, len(self.blocks), 0))
        gains = time < best - GAIN or best == inf
        return (again, stock) if gains and (again, stock) not in self.tried else None

    def _estimates(self) -> Iterator[tuple[float, int, int]]:
        """Times of mixtures that are estimated to be within the limits and the bound, and were not observed."""
        for again in range(len(self.blocks) + 1):
            for stock in range(len(self.blocks) + 1 - again):
                if (again, stock) not in self.tried:
                    parts = self._parts(again, stock)
                    shares = [share for bits in WIDTHS if (share := self._share(parts, bits)) is not None]
                    if shares:
                        codable = parts.captured + parts.again * _elements(self.again) / self.elements
                        yield self.prices.time(parts, min(shares) * codable), again, stock

    def _parts(self, again: int, stock: int) -> Parts:
        """The share of blocks that go each way."""
        first, last = self.passed[again], self.passed[-1] - self.passed[len(self.blocks) - stock]
        return Parts(max(1.0 - first - last, 0.0), first, last)

    def _share(self, parts: Parts, bits: int) -> float | None:
        """The least share of what can have codes that has to have some; None if that errs or takes too much."""
        share = 0.0
        whole, coded = self._estimated(parts, None), self._estimated(parts, bits)
        for limit, most, least, off in zip((self.limit.kept, self.limit.peak), whole, coded, self.off, strict=True):
            if limit is not None and most + off > limit:
                if least + off > limit:
                    return None
                share = max(share, (most + off - limit) / (most - least))
        return share if share * parts.captured * self.error[bits] <= self.bound else None

    def _estimated(self, parts: Parts, bits: int | None) -> Amounts:
        """Bytes with codes of so many bits everywhere; None: without codes."""
        captured, again = self.alone[bits]
        return parts.captured * captured + parts.again * again + parts.stock * self.stock

    def checked(self, candidate: Candidate) -> Candidate | None:
        """The candidate with bits whose error is within the bound on other samples; None if none was found."""
        ways, step, *_ = candidate
        if candidate.codes and ways.recomputed:  # what is given to these has no errors yet
            candidate = candidate._replace(errors=self.task.errors(ways.recomputed, step))
        asked, gradients = self.bound, None
        with ExitStack() as measuring:
            for _ in range(TRIES):
                solved = self._solved(candidate, asked)
                if solved is None or not solved.codes:
                    return solved
                bits = solved.solution.bits
                gradients = gradients or measuring.enter_context(self.task.checking(ways.recomputed, bits))
                error = gradients.error(bits)
                if error <= self.bound:
                    return solved
                asked *= MARGIN * self.bound / error
        return None


def _amounts(step: Step, bits: int | None) -> Amounts:
    return np.array([step.kept_with(bits), step.peak_with(bits)], dtype=float)


def _elements(step: Step, bits: Bits | None = None) -> int:
    """Elements that can have codes, or that have some, in units of 8."""
    return sum(site.per_bit for site in step.sites if bits is None or bits[site.name] is not None)
