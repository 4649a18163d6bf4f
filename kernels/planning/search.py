"""Searches the blocks to compute again and the bits of all sites; steps and errors are measured as it needs them."""

from math import inf
from typing import NamedTuple

from kernels.errors import KernelError
from kernels.methods.planned import WIDTHS
from kernels.planning.limits import Limits
from kernels.planning.observe import Step
from kernels.planning.sensitivity import SiteErrors
from kernels.planning.solve import InfeasibleError, Solution, everywhere, solve, widest, with_fewest_codes
from kernels.planning.task import Blocks, Task, completed

USUAL = 4  # bits with which networks train as well as without codes, see docs/training.md
TRIES = 4  # solutions that are checked on other samples
MARGIN = 0.9  # of the bound that a solution is sought within after one that exceeded it


class Candidate(NamedTuple):
    """A solution with some blocks computed again, with the step and errors that it is for."""

    blocks: Blocks
    step: Step
    errors: SiteErrors
    solution: Solution


def search(task: Task, limit: Limits, bound: float | None) -> Candidate:
    """The solution with the fewest blocks computed again whose error is within the bound; else of the least error."""
    blocks = task.blocks
    step = task.step(())
    if not limit.hold(step, everywhere(step, WIDTHS[0])):
        widest(_with_all(task, blocks, step), limit)  # raises before errors are measured, which takes time
    errors = task.errors((), step)
    max_error = _bound(errors, bound)

    def estimated_error(count: int) -> float:
        """The error with `count` blocks computed again, infinite if that does not fit."""
        recomputed = step if count == 0 else task.step(blocks[:count])
        try:
            return solve(recomputed, completed(errors, recomputed), limit).error
        except InfeasibleError:
            return inf

    count = 0
    if blocks and estimated_error(0) > max_error and _can_run_again(task, blocks):
        low, count = 0, len(blocks)
        while count - low > 1:
            middle = (low + count) // 2
            low, count = (low, middle) if estimated_error(middle) <= max_error else (middle, count)
    candidate = _measured(task, blocks[:count], limit)
    while candidate.solution.error > max_error and 0 < count < len(blocks):  # the estimate was too low
        count += 1
        candidate = _measured(task, blocks[:count], limit)
    if bound is not None and candidate.solution.error > max_error:
        raise KernelError(
            f"max_gradient_error must be at least {candidate.solution.error**0.5:.3g} for this budget, got {bound:g};"
            " or give a larger budget"
        )
    return candidate


def _measured(task: Task, blocks: Blocks, limit: Limits) -> Candidate:
    """The solution with these blocks computed again; raises InfeasibleError."""
    step = task.step(blocks)
    errors = task.errors(blocks, step)
    return Candidate(blocks, step, errors, solve(step, errors, limit))


def _with_all(task: Task, blocks: Blocks, step: Step) -> Step:
    """A step with all blocks computed again, or `step` if that is impossible."""
    return task.step(blocks) if _can_run_again(task, blocks) else step


def _can_run_again(task: Task, blocks: Blocks) -> bool:
    """Whether backward can run all blocks again; not if they fill a cache, for example."""
    try:
        task.step(blocks)
    except KernelError:  # raised by the second run of a block
        return False
    return True


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
