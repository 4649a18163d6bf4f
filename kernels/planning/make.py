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

USUAL = 4  # bits: with these everywhere networks train as without codes, see docs/training.md


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
    """The plan of least error of the gradient for a budget of memory; the model is left as it was.

    If codes alone do not fit, or only with too large an error, blocks are computed again in backward, the fewest that
    do: the first ones, whose backward passes come last, when the rest of the memory is free again.

    Parameters
    ----------
    model
        As it trains: not converted, on its device. It may be on fake tensors, with a `stand_in`.
    inputs
        A whole batch of training, as `convert` takes it: its size says what a step takes.
    budget
        Bytes at the peak of forward and backward, over what is there before them (parameters, gradients, the
        optimizer's state), as "24GiB"; or, between 0 and 1, a share of the bytes that the model keeps for backward now.
    loss
        Makes the loss of the model's output, and of the targets if there are any. By default the output's own, as
        models of transformers give with labels, or else random linear functions.
    targets
        The loss's second argument: of a batch, as the inputs are.
    max_gradient_error
        Bound on ||g' - g|| / ||g|| of the gradient, above which blocks are computed again. By default what 4 bits
        everywhere would do; then a larger one is taken where nothing else fits.
    rounding
        "nearest" or "stochastic".
    samples
        How many of the batch errors are measured by; as many others check the plan.
    passes
        Backward passes over those samples; three for each kind of saved tensor are needed.
    stand_in
        Another model with modules of the same names, its inputs, and its targets if the loss takes any, to measure
        errors on: a narrow one of one that is too large.
    compiled
        Whether the plan is for `torch.compile`, by `compression.options(plan=...)`: of what crosses in the graphs of
        the whole model. The budget is a share of what the model keeps in eager mode, then.
    progress
        Is given a text of what is being done, now and then.

    Returns
    -------
    Plan
        Never one with a larger error on the checking samples than the widest codes that fit, the same everywhere.

    Raises
    ------
    KernelError
        For a budget that cannot be held, with the least that can; for a model that does not run on fake tensors.
    """
    _check(max_gradient_error)
    task = kind_of(compiled)(model, call_of(inputs), loss, targets, rounding, samples, passes, stand_in, progress)
    return plan_of(task, budget, max_gradient_error)


def kind_of(compiled: bool) -> type[Task]:
    """What asks a model, in eager mode or compiled."""
    if not compiled:
        return Task
    from kernels.compression.planning import CompiledTask  # with Inductor, which takes seconds to import

    return CompiledTask


def plan_of(task: Task, budget: str | float, max_gradient_error: float | None = None) -> Plan:
    """As `make_plan`, of a task."""
    number = check(budget)
    if task.compiled and isinstance(number, int):
        raise KernelError(
            "budget must be a share of what the model keeps for a compiled model, as 0.2, whose peak depends on code"
            f" that is not generated yet, got {shown(budget)}"
        )
    name, stock, rounding = type(task.model).__name__, task.stock, task.rounding
    limit = limits(budget, stock.kept)
    if limit.include(stock.kept, stock.peak):
        return Plan(name, str(budget), rounding, (), (), stock, stock, Errors(0.0, 0.0), 0, 0.0, 0.0, "", task.compiled)
    found = _searched(task, limit, max_gradient_error)
    uniform = widest(found.step, limit)
    of_plan, of_uniform = task.checked(found.blocks, [found.solution.bits, uniform])
    solution = found.solution
    if of_plan > of_uniform:
        solution = Solution(uniform, error_of(found.errors, uniform), solution.gap)
        of_plan = of_uniform
    return Plan(
        name,
        str(budget),
        rounding,
        tuple(found.blocks),
        _sites(found.step, solution.bits, found.errors),
        stock,
        Bytes(found.step.kept_with(solution.bits), found.step.peak_with(solution.bits)),
        Errors(solution.error**0.5, of_plan**0.5),
        next(iter(uniform.values()), 0),
        of_uniform**0.5,
        solution.gap,
        task.measured_on,
        task.compiled,
    )


class _Found(NamedTuple):
    """A solution with some blocks computed again, and what it was found by."""

    blocks: Blocks
    step: Step
    errors: SiteErrors
    solution: Solution


def _searched(task: Task, limit: Limits, bound: float | None) -> _Found:
    """The solution with the fewest blocks computed again whose error is within the bound; else of the least error."""
    blocks = task.blocks
    step = task.step(())
    if not limit.hold(step, everywhere(step, WIDTHS[0])):
        widest(_with_all(task, blocks, step), limit)  # before it takes time
    errors = task.errors((), step)
    most = bound**2 if bound is not None else sum(by_bits[USUAL] for by_bits in errors.values())

    def guessed(count: int) -> float:
        """The error with so many blocks computed again, infinite where they do not fit."""
        some = step if count == 0 else task.step(blocks[:count])
        try:
            return solve(some, completed(errors, some), limit).error
        except InfeasibleError:
            return inf

    count = 0
    if blocks and guessed(0) > most and _can_run_again(task, blocks):
        low, count = 0, len(blocks)
        while count - low > 1:
            middle = (low + count) // 2
            low, count = (low, middle) if guessed(middle) <= most else (middle, count)
    found = _measured(task, blocks[:count], limit)
    while found.solution.error > most and 0 < count < len(blocks):  # what was guessed was too little
        count += 1
        found = _measured(task, blocks[:count], limit)
    if bound is not None and found.solution.error > most:
        raise KernelError(
            f"max_gradient_error must be at least {found.solution.error**0.5:.3g} for this budget, got {bound:g}; or"
            " give a larger budget"
        )
    return found


def _measured(task: Task, blocks: Blocks, limit: Limits) -> _Found:
    """The solution with these blocks computed again; raises InfeasibleError."""
    step = task.step(blocks)
    errors = task.errors(blocks, step)
    return _Found(blocks, step, errors, solve(step, errors, limit))


def _with_all(task: Task, blocks: Blocks, step: Step) -> Step:
    """A step with all blocks computed again, or the one without, if that cannot be."""
    return task.step(blocks) if _can_run_again(task, blocks) else step


def _can_run_again(task: Task, blocks: Blocks) -> bool:
    """Whether backward can run all blocks again: not, for one, where they fill a cache."""
    try:
        task.step(blocks)
    except KernelError:  # as the model raises it in its second run
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
