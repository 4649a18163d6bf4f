"""Planning: observe a step, measure what codes do to the gradient, solve, and check on other samples."""

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from torch import nn

from kernels.errors import KernelError, shown
from kernels.memory.step import Loss
from kernels.methods.planned import WIDTHS
from kernels.planning.batches import call_of
from kernels.planning.budget import check, limits
from kernels.planning.limits import Limits
from kernels.planning.observe import Step
from kernels.planning.plan import Bytes, Errors, Plan, PlannedSite
from kernels.planning.sensitivity import Bits, SiteErrors
from kernels.planning.solve import InfeasibleError, Solution, error_of, everywhere, solve, widest
from kernels.planning.task import PASSES, SAMPLES, Blocks, StandIn, Task, completed

USUAL = 4  # bits with which networks train as well as without codes, see docs/training.md


def make_plan(
    model: nn.Module,
    inputs: Any,
    budget: str | float,
    *,
    loss: Loss | None = None,
    targets: Any = None,
    max_gradient_error: float | None = None,
    rounding: str = "nearest",
    samples: int = SAMPLES,
    passes: int = PASSES,
    stand_in: StandIn | None = None,
    compiled: bool = False,
    progress: Callable[[str], object] = lambda doing: None,
) -> Plan:
    """The plan of least error of the gradient for a budget of memory; the model is left as it was. See docs/budget.md.

    Parameters
    ----------
    model
        The model as it trains, not converted and on its device. It may have fake tensors, with a `stand_in`.
    inputs
        A whole training batch, as `convert` takes it.
    budget
        Bytes at the peak of a step over those from before, as "24GiB"; or, between 0 and 1, a share of the bytes that
        the model saves for backward now, in eager mode.
    loss, targets
        The loss, a function of the model's output and, if given, of the batch's targets. By default the output's own
        loss, as in transformers' models with labels, or else random linear functions.
    max_gradient_error
        Bound on ||g' - g|| / ||g||, above which the first blocks are computed again, as few as possible. By default the
        error of 4 bits everywhere; a larger one is then accepted if nothing else fits.
    rounding
        "nearest" or "stochastic".
    samples, passes
        How many samples of the batch errors are measured on, and by how many backward passes, at least three for each
        kind of saved tensor. As many other samples check the plan.
    stand_in
        A narrow model with modules of the same names, its inputs, and its targets if the loss takes any: errors are
        measured on it if the model itself is too large.
    compiled
        Whether the plan is for `torch.compile`, by `compression.options(plan=...)`; the budget is then a share.
    progress
        Called with a text for each thing that is being done.

    Returns
    -------
    Plan
        Its error on the checking samples is at most that of the widest codes that fit with the same bits everywhere.

    Raises
    ------
    KernelError
        For a budget that is too small, with the smallest possible; for a model that does not run on fake tensors.
    """
    _check(max_gradient_error)
    task = kind_of(compiled)(model, call_of(inputs), loss, targets, rounding, samples, passes, stand_in, progress)
    return plan_of(task, budget, max_gradient_error)


def kind_of(compiled: bool) -> type[Task]:
    """The class of tasks for a model in eager mode or compiled."""
    if not compiled:
        return Task
    from kernels.compression.planning import CompiledTask  # imports Inductor, which takes seconds

    return CompiledTask


def plan_of(task: Task, budget: str | float, max_gradient_error: float | None = None) -> Plan:
    """As `make_plan`, for a task."""
    number = check(budget)
    if task.compiled and isinstance(number, int):
        raise KernelError(
            "budget must be a share of what the model keeps for a compiled model, as 0.2, whose peak depends on code"
            f" that is not generated yet, got {shown(budget)}"
        )
    name, stock, rounding = type(task.model).__name__, task.stock, task.rounding
    limit = limits(budget, stock.kept)
    if limit.include(stock.kept, stock.peak):
        return Plan(
            name, str(budget), rounding, (), (), stock, stock, Errors(0.0, 0.0), 0, 0.0, 0.0, "", task.compiled, 1.0
        )
    best = _search(task, limit, max_gradient_error)
    uniform = widest(best.step, limit)
    plan_error, uniform_error = task.checked(best.blocks, [best.solution.bits, uniform])
    solution = best.solution
    if plan_error > uniform_error:
        solution = Solution(uniform, error_of(best.errors, uniform), solution.gap)
        plan_error = uniform_error
    return Plan(
        name,
        str(budget),
        rounding,
        tuple(best.blocks),
        _sites(best.step, solution.bits, best.errors),
        stock,
        Bytes(best.step.kept_with(solution.bits), best.step.peak_with(solution.bits)),
        Errors(solution.error**0.5, plan_error**0.5),
        next(iter(uniform.values()), 0),
        uniform_error**0.5,
        solution.gap,
        task.measured_on,
        task.compiled,
        task.work(best.step.operations),
    )


class _Candidate(NamedTuple):
    """A solution with some blocks computed again, with the step and errors that it is for."""

    blocks: Blocks
    step: Step
    errors: SiteErrors
    solution: Solution


def _search(task: Task, limit: Limits, bound: float | None) -> _Candidate:
    """The solution with the fewest blocks computed again whose error is within the bound; else of the least error."""
    blocks = task.blocks
    step = task.step(())
    if not limit.hold(step, everywhere(step, WIDTHS[0])):
        widest(_with_all(task, blocks, step), limit)  # raises before errors are measured, which takes time
    errors = task.errors((), step)
    max_error = bound**2 if bound is not None else sum(by_bits[USUAL] for by_bits in errors.values())

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


def _measured(task: Task, blocks: Blocks, limit: Limits) -> _Candidate:
    """The solution with these blocks computed again; raises InfeasibleError."""
    step = task.step(blocks)
    errors = task.errors(blocks, step)
    return _Candidate(blocks, step, errors, solve(step, errors, limit))


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


def _check(bound: Any) -> None:
    if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < inf):
        raise KernelError(f"max_gradient_error must be a number above 0, got {shown(bound)}")


def _sites(step: Step, bits: Bits, errors: SiteErrors) -> tuple[PlannedSite, ...]:
    return tuple(
        PlannedSite(site.name, width, site.whole, site.bytes(width), error_of(errors, {site.name: width}))
        for site in step.sites
        for width in (bits[site.name],)
    )
