"""Searches the blocks to compute again and the bits of all sites; steps and errors are measured as it needs them."""

from math import ceil, floor, inf, log10
from typing import NamedTuple

from actfit.kernels.errors import KernelError
from actfit.kernels.methods.planned import WIDTHS
from actfit.kernels.planning.limits import Limits
from actfit.kernels.planning.sensitivity import SiteErrors
from actfit.kernels.planning.solve import InfeasibleError, Solution, everywhere, infeasible, solve, with_fewest_codes
from actfit.kernels.planning.step import Step
from actfit.kernels.planning.task import Blocks, Task, completed

USUAL = 4  # bits with which networks train as well as without codes, see docs/training.md
TRIES = 4  # solutions that are checked on other samples
MARGIN = 0.9  # of the bound that a solution is sought within after one that exceeded it


class Candidate(NamedTuple):
    """A solution with some blocks computed again, with the step and errors that it is for."""

    blocks: Blocks
    step: Step
    errors: SiteErrors
    solution: Solution


def search(task: Task, limit: Limits, bound: float | None, low_peak: bool = False) -> Candidate:
    """The solution with the fewest blocks computed again whose error is within the bound; else of the least error.

    Of steps with a low peak or without, see `Task.step`. Raises InfeasibleError if no solution is within the limits.
    """
    blocks = task.blocks
    step = task.step((), low_peak)
    smallest(task, limit, low_peak)  # raises before errors are measured, which takes time
    errors = task.errors((), step)
    max_error = _bound(errors, bound)

    def estimated_error(count: int) -> float:
        """The error with `count` blocks computed again, infinite if that does not fit."""
        recomputed = step if count == 0 else task.step(blocks[:count], low_peak)
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
    step = task.step((), low_peak)
    if not _fits(step, limit):
        if _all_fit(task, limit, low_peak):
            return task.step(task.blocks, low_peak)
        if _can_run_again(task, low_peak) and _less(with_all := task.step(task.blocks, low_peak), step, limit):
            step = with_all
        raise InfeasibleError(infeasible(step, limit))
    return step


def _fits(step: Step, limit: Limits) -> bool:
    """Whether a step is within the limits with the narrowest codes."""
    return limit.hold(step, everywhere(step, WIDTHS[0]))


def _all_fit(task: Task, limit: Limits, low_peak: bool) -> bool:
    """Whether a step with all blocks computed again is possible and within the limits."""
    return _can_run_again(task, low_peak) and _fits(task.step(task.blocks, low_peak), limit)


def _less(step: Step, than: Step, limit: Limits) -> bool:
    """Whether a step takes less of what is limited, with the narrowest codes."""

    def least(step: Step) -> int:
        bits = everywhere(step, WIDTHS[0])
        return step.kept_with(bits) if limit.peak is None else step.peak_with(bits) or 0

    return least(step) < least(than)


def _measured(task: Task, blocks: Blocks, limit: Limits, low_peak: bool) -> Candidate:
    """The solution with these blocks computed again; raises InfeasibleError."""
    step = task.step(blocks, low_peak)
    errors = task.errors(blocks, step)
    return Candidate(blocks, step, errors, solve(step, errors, limit))


def _can_run_again(task: Task, low_peak: bool) -> bool:
    """Whether there are blocks and backward can run all again; not if they fill a cache, for example."""
    try:
        task.step(task.blocks, low_peak)
    except KernelError:  # raised by the second run of a block
        return False
    return bool(task.blocks)


def with_fewest(task: Task, candidate: Candidate, limit: Limits, bound: float | None) -> Candidate | None:
    """The candidate with the fewest elements in codes whose error is within the bound, on other samples, too.

    None if the candidate's own error exceeds the bound, or if no solution was found that keeps it.
    """
    blocks, step, errors, _ = candidate
    asked = _bound(errors, bound)
    for _ in range(TRIES):
        if not step.sites or not asked or candidate.solution.error > asked:
            return None
        solution = with_fewest_codes(step, errors, limit, asked)
        if solution is None:
            return None
        error, usual_error = task.checked(blocks, [solution.bits, everywhere(step, USUAL)])
        allowed = usual_error if bound is None else bound**2
        if error <= allowed:
            return candidate._replace(solution=solution)
        asked *= MARGIN * allowed / error
    return None


def _bound(errors: SiteErrors, bound: float | None) -> float:
    """The bound on the squared error: as given, or the error of the usual bits everywhere."""
    return bound**2 if bound is not None else sum(by_bits[USUAL] for by_bits in errors.values())


def _up(number: float) -> str:
    """A positive number in three digits, not less than it is."""
    unit = 10.0 ** (floor(log10(number)) - 2)
    return f"{ceil(number / unit) * unit:.3g}"
