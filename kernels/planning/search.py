"""Searches the blocks to compute again and the bits of all sites; steps and errors are measured as it needs them."""

from math import ceil, floor, inf, log10
from typing import NamedTuple

from actfit.kernels.errors import KernelError
from actfit.kernels.methods.planned import WIDTHS
from actfit.kernels.planning.blocks import CAPTURED, Blocks, BlockWays
from actfit.kernels.planning.budget import Limits
from actfit.kernels.planning.sensitivity import SiteErrors, completed
from actfit.kernels.planning.solve import InfeasibleError, Solution, everywhere, infeasible, solve
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
    step = task.step(CAPTURED, low_peak)
    smallest(task, limit, low_peak)  # raises before errors are measured, which takes time
    errors = task.errors((), step)
    max_error = _bound(errors, bound)

    def estimated_error(count: int) -> float:
        """The error with `count` blocks computed again, infinite if that does not fit."""
        recomputed = step if count == 0 else task.step(BlockWays(blocks[:count]), low_peak)
        try:
            return solve(recomputed, completed(errors, recomputed), limit).error
        except InfeasibleError:
            return inf

    count = 0
    if blocks and estimated_error(0) > max_error and _all_fit(task, limit, low_peak):
        low, count = 0, len(blocks)
        while count - low > 1:
            middle = (low + count) // 2
            low, count = (low, middle) if estimated_error(middle) <= max_error else (middle, count)
    candidate = _measured(task, blocks[:count], limit, low_peak)
    while candidate.solution.error > max_error and 0 < count < len(blocks):  # the estimate was too low
        count += 1
        candidate = _measured(task, blocks[:count], limit, low_peak)
    if bound is not None and candidate.solution.error > max_error:
        raise KernelError(
            f"max_gradient_error must be at least {_up(candidate.solution.error**0.5)} for this budget, got {bound:g};"
            " or give a larger budget"
        )
    return candidate


def smallest(task: Task, limit: Limits, low_peak: bool = False) -> Step:
    """A step that is within the limits with the narrowest codes: without blocks computed again, or with all of them.

    Raises InfeasibleError if neither is.
    """
    steps = [task.step(CAPTURED, low_peak)]
    if not _fits(steps[0], limit) and task.blocks:
        steps.append(task.step(BlockWays(task.blocks), low_peak))
    for step in steps:
        if _fits(step, limit):
            return step
    raise InfeasibleError(infeasible(min(steps, key=lambda step: _least(step, limit)), limit))


def _fits(step: Step, limit: Limits) -> bool:
    """Whether a step is within the limits with the narrowest codes."""
    return limit.hold(step, everywhere(step, WIDTHS[0]))


def _all_fit(task: Task, limit: Limits, low_peak: bool) -> bool:
    """Whether a step with all blocks computed again is possible and within the limits."""
    return bool(task.blocks) and _fits(task.step(BlockWays(task.blocks), low_peak), limit)


def _least(step: Step, limit: Limits) -> int:
    """The bytes of what is limited, with the narrowest codes."""
    bits = everywhere(step, WIDTHS[0])
    return step.kept_with(bits) if limit.peak is None else step.peak_with(bits) or 0


def _measured(task: Task, blocks: Blocks, limit: Limits, low_peak: bool) -> Candidate:
    """The solution with these blocks computed again; raises InfeasibleError."""
    ways = BlockWays(blocks)
    step = task.step(ways, low_peak)
    errors = task.errors(blocks, step)
    return Candidate(ways, step, errors, solve(step, errors, limit))


def _bound(errors: SiteErrors, bound: float | None) -> float:
    """The bound on the squared error: as given, or the error of the usual bits everywhere."""
    return bound**2 if bound is not None else sum(by_bits[USUAL] for by_bits in errors.values())


def _up(number: float) -> str:
    """A positive number in three digits, not less than it is."""
    unit = 10.0 ** (floor(log10(number)) - 2)
    return f"{ceil(number / unit) * unit:.3g}"
