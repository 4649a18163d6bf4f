"""Planning: observe a step, measure what codes do to the gradient, solve, and check on other samples."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import inf
from typing import Any

from torch import nn

from actfit.coefficients.progress import shown as shown_progress
from actfit.kernels.errors import KernelError, shown
from actfit.kernels.memory.saved import size
from actfit.kernels.memory.step import Loss
from actfit.kernels.methods.planned import WIDTHS
from actfit.kernels.planning.batches import call_of
from actfit.kernels.planning.budget import check, limits
from actfit.kernels.planning.goals import GOALS, Goal
from actfit.kernels.planning.limits import Limits
from actfit.kernels.planning.modules import repeated_modules
from actfit.kernels.planning.plan import Plan
from actfit.kernels.planning.safety import checked
from actfit.kernels.planning.search import Candidate, search, smallest, with_fewest
from actfit.kernels.planning.sensitivity import Bits, SiteErrors
from actfit.kernels.planning.solve import InfeasibleError, Solution, error_of, everywhere, widest
from actfit.kernels.planning.step import Step
from actfit.kernels.planning.task import PASSES, SAMPLES, StandIn, Task, silent
from actfit.kernels.planning.values import Bytes, Errors, PlannedSite

STACK_LEVEL = 3  # the caller of make_plan, seen from plan_of


def make_plan(
    model: nn.Module,
    inputs: Any,
    budget: str | float,
    *,
    loss: Loss | None = None,
    targets: Any = None,
    max_gradient_error: float | None = None,
    goal: Goal = "error",
    rounding: str = "nearest",
    samples: int = SAMPLES,
    passes: int = PASSES,
    stand_in: StandIn | None = None,
    compiled: bool = False,
    strict: bool = False,
    progress: Callable[[str], object] | None = None,
    stack_level: int = 1,
) -> Plan:
    """The plan of least error of the gradient for a budget of memory; the model is left as it was. See docs/budget.md.

    Parameters
    ----------
    model
        The model as it trains, not compressed yet and on its device. It may have fake tensors, with a `stand_in`.
    inputs
        A whole training batch: a tensor, a tuple of arguments, or a mapping of keyword arguments.
    budget
        Bytes at the peak of a step over those from before, as "24GiB"; or, between 0 and 1, a share of the bytes that
        the model saves for backward now, in eager mode.
    loss, targets
        The loss, a function of the model's output and, if given, of the batch's targets. By default the output's own
        loss, as in transformers' models with labels, or else random linear functions.
    max_gradient_error
        Bound on ||g' - g|| / ||g||, above which the first blocks are computed again, as few as possible. By default the
        error of 4 bits everywhere; a larger one is then accepted if nothing else fits.
    goal
        "error": the least error. "time": as few elements in codes as the budget allows with an error within that bound;
        the plan's `goal` is "error" if only the least error is within it.
    rounding
        "nearest" or "stochastic".
    samples, passes
        How many samples of the batch errors are measured on, and by how many backward passes, at least three for each
        kind of saved tensor. As many other samples check the plan.
    stand_in
        A narrow model with modules of the same names, its inputs, and its targets if the loss takes any: errors are
        measured on it if the model itself is too large.
    compiled
        Whether the plan is for `torch.compile`, by `actfit.options(plan=...)`, not for `compress`;
        the budget is then a share.
    strict
        Whether to raise KernelError, not warn, where the plan's error on the checking samples is more than three times
        what is predicted, or what errors of its tensors account for; both name the tensors that do it.
    progress
        Called with a text for each thing that is being done. None: after two seconds a terminal shows them.
    stack_level
        Of the call that warnings point to: 1 for that of `make_plan`, as of `warnings.warn`.

    Returns
    -------
    Plan
        Its error on the checking samples is at most that of the widest codes that fit with the same bits everywhere;
        with goal="time", that of 4 bits everywhere, or `max_gradient_error`.

    Raises
    ------
    KernelError
        For a budget that is too small, with the smallest possible; for a model that does not run on fake tensors.
    """
    _check(max_gradient_error, goal)
    given = model, call_of(inputs), loss, targets, rounding, samples, passes, stand_in
    with reported(progress) as doing:
        return plan_of(
            kind_of(compiled)(*given, doing), budget, max_gradient_error, goal, strict, stack_level + STACK_LEVEL - 1
        )


@contextmanager
def reported(progress: Callable[[str], object] | None) -> Iterator[Callable[[str], object]]:
    """A function for texts of what is being done: as given, or one that shows them on a terminal."""
    if progress is not None:
        yield progress
        return
    with shown_progress() as doing:
        yield doing or silent


def kind_of(compiled: bool) -> type[Task]:
    """The class of tasks for a model that is compiled, or captured by `compress`."""
    if not compiled:
        from actfit.kernels.graph.planning import CapturedTask

        return CapturedTask
    from actfit.kernels.compression.planning import CompiledTask  # imports Inductor, which takes seconds

    return CompiledTask


def plan_of(
    task: Task,
    budget: str | float,
    max_gradient_error: float | None = None,
    goal: Goal = "error",
    strict: bool = False,
    stack_level: int = STACK_LEVEL,
) -> Plan:
    """As `make_plan`, for a task; `stack_level`: of the caller that a warning points to, seen from here."""
    number = check(budget)
    if task.compiled and isinstance(number, int):
        raise KernelError(
            "budget must be a share of what the model keeps for a compiled model, as 0.2, whose peak depends on code"
            f" that is not generated yet, got {shown(budget)}"
        )
    limit = limits(budget, task.stock.kept)
    if limit.include(task.stock.kept, task.stock.peak):
        return _unneeded(task, budget, goal)
    outcome = _gaining(task, limit, max_gradient_error)
    if isinstance(outcome, str):
        message = f"budget must leave the peak as low as it is, got {shown(budget)}: {outcome}"
        warnings.warn(message, stacklevel=stack_level)
        return _unneeded(task, budget, goal, outcome)
    best, limit = outcome
    fastest = with_fewest(task, best, limit, max_gradient_error) if goal == "time" else None
    if fastest is None:
        goal = "error"  # it is all that is within the bound
    else:
        best = fastest
    uniform, solution = widest(best.step, limit), best.solution
    with task.checking(best.blocks, solution.bits) as gradients:
        plan_error, uniform_error = gradients.error(solution.bits), gradients.error(uniform)
        to_come = [task.still_to_come(best.blocks, best.step, bits) for bits in (solution.bits, uniform)]
        if goal == "error" and plan_error + to_come[0] > uniform_error + to_come[1]:
            solution = Solution(uniform, error_of(best.errors, uniform), solution.gap)
            plan_error = uniform_error
        verdict = checked(gradients, solution.bits, solution.error**0.5, plan_error**0.5)
        decoded = gradients.decoded.undiminished(solution.bits)
    verdict.tell(strict, stack_level)
    return Plan(
        type(task.model).__name__,
        str(budget),
        task.rounding,
        tuple(best.blocks),
        _sites(best.step, solution.bits, best.errors, decoded),
        task.stock,
        Bytes(best.step.kept_with(solution.bits), best.step.peak_with(solution.bits)),
        Errors(solution.error**0.5, plan_error**0.5),
        next(iter(uniform.values()), 0),
        uniform_error**0.5,
        solution.gap,
        task.measured_on,
        task.compiled,
        task.work(best.step.operations),
        goal,
        modules=repeated_modules(task.model),
    )


def _gaining(task: Task, limit: Limits, bound: float | None) -> tuple[Candidate, Limits] | str:
    """The best solution and the limits that it is within; or why there is none with a peak below the model's own."""
    if limit.peak is not None:
        return search(task, limit, bound, low_peak=True), limit
    if task.compiled:
        return search(task, limit, bound), limit
    gaining = replace(limit, peak=task.stock.peak)
    for low_peak in (False, True):
        with suppress(InfeasibleError):
            return search(task, gaining, bound, low_peak), gaining
    step = smallest(task, limit)
    peak, now = step.peak_with(everywhere(step, WIDTHS[0])) or 0, task.stock.peak or 1
    return (
        f"the peak of a step would be {size(peak)} or more, {peak / now:.3g} × what it is now, as codes are decoded"
        " whole; larger budgets may gain, and deeper models do"
    )


def _unneeded(task: Task, budget: str | float, goal: Goal, reason: str = "") -> Plan:
    """The plan that changes nothing."""
    name, stock, none = type(task.model).__name__, task.stock, Errors(0.0, 0.0)
    what = str(budget), task.rounding, (), (), stock, stock
    return Plan(
        name, *what, none, 0, 0.0, 0.0,
        compiled=task.compiled, work=1.0, goal=goal, reason=reason,
    )  # fmt: skip


def _check(bound: Any, goal: Any) -> None:
    """Raise KernelError for an invalid bound or goal."""
    if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < inf):
        raise KernelError(f"max_gradient_error must be a number above 0, got {shown(bound)}")
    if goal not in GOALS:
        raise KernelError(f"goal must be one of {', '.join(GOALS)}, got {shown(goal)}")


def _sites(step: Step, bits: Bits, errors: SiteErrors, decoded: Mapping[str, float]) -> tuple[PlannedSite, ...]:
    return tuple(
        PlannedSite(
            site.name,
            width,
            site.whole,
            site.bytes(width),
            error_of(errors, {site.name: width}),
            decoded=decoded.get(site.name),
        )
        for site in step.sites
        for width in (bits[site.name],)
    ) + tuple(PlannedSite(name, None, count, count, 0.0) for name, count in step.whole.items())
