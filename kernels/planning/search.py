"""Searches the blocks to compute again and the bits of all sites; steps and errors are measured as it needs them."""

from bisect import bisect_left
from math import ceil, floor, log10
from typing import NamedTuple

from actfit.kernels.errors import KernelError
from actfit.kernels.methods.planned import WIDTHS
from actfit.kernels.planning.blocks import CAPTURED, Blocks, BlockWays
from actfit.kernels.planning.budget import Limits
from actfit.kernels.planning.sensitivity import SiteErrors, completed
from actfit.kernels.planning.solve import InfeasibleError, Solution, infeasible, solve
from actfit.kernels.planning.step import Step
from actfit.kernels.planning.task import Task

USUAL = 4  # bits with which networks train as well as without codes, see docs/explanation/training.md


class Candidate(NamedTuple):
    """A solution, and the ways of blocks, step and errors that it is for; time: of a step, × stock's; 0: not known."""

    ways: BlockWays
    step: Step
    errors: SiteErrors
    solution: Solution = Solution({}, 0.0, 0.0)
    time: float = 0.0
    measured: bool = False  # whether the time is one of this machine

    @property
    def codes(self) -> bool:
        """Whether some tensors have codes."""
        return any(self.solution.bits.values())


def search(task: Task, limit: Limits, bound: float | None, low_peak: bool = False) -> Candidate:
    """The solution with the fewest blocks computed again whose error is within the bound; else of the least error.

    Of steps with a low peak or without, see `Task.step`. Raises InfeasibleError if no solution is within the limits.
    """
    blocks = task.blocks
    smallest(task, limit, low_peak)  # raises before errors are measured, which takes time
    errors = task.errors((), task.step(CAPTURED, low_peak))
    max_error = sum(by_bits[USUAL] for by_bits in errors.values()) if bound is None else bound**2

    def enough(count: int) -> bool:
        """Whether it fits with `count` blocks computed again, and is estimated to err by no more than the bound."""
        step = task.step(BlockWays(blocks[:count]), low_peak)
        try:
            return solve(step, completed(errors, step), limit).error <= max_error
        except InfeasibleError:
            return False

    count = 0
    if blocks and not enough(0) and limit.hold(task.step(BlockWays(blocks), low_peak), WIDTHS[0]):
        count = bisect_left(range(len(blocks)), True, lo=1, key=enough)
    candidate = _measured(task, blocks[:count], limit, low_peak)
    while candidate.solution.error > max_error and 0 < count < len(blocks):  # the estimate was too low
        count += 1
        candidate = _measured(task, blocks[:count], limit, low_peak)
    error = candidate.solution.error**0.5
    if bound is not None and error > bound:
        unit = 10.0 ** (floor(log10(error)) - 2)  # of three digits, not less than it is
        raise KernelError(
            f"max_gradient_error must be at least {ceil(error / unit) * unit:.3g} for this budget, got {bound:g};"
            " or give a larger budget"
        )
    return candidate


def smallest(task: Task, limit: Limits, low_peak: bool = False) -> Step:
    """A step that is within the limits with the narrowest codes: without blocks computed again, or with all of them.

    Raises InfeasibleError if neither is.
    """
    steps = []
    for ways in (CAPTURED, *([BlockWays(task.blocks)] if task.blocks else [])):
        step = task.step(ways, low_peak)
        if limit.hold(step, WIDTHS[0]):
            return step
        steps.append(step)
    limited = Step.kept_with if limit.peak is None else Step.peak_with
    raise InfeasibleError(infeasible(min(steps, key=lambda step: limited(step, WIDTHS[0])), limit))


def _measured(task: Task, blocks: Blocks, limit: Limits, low_peak: bool) -> Candidate:
    """The solution with these blocks computed again; raises InfeasibleError."""
    ways = BlockWays(blocks)
    step = task.step(ways, low_peak)
    errors = task.errors(blocks, step)
    return Candidate(ways, step, errors, solve(step, errors, limit))
