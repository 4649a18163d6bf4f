"""Plans a task: bytes that a budget allows, the search, and a check of what it found on other samples."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from types import MappingProxyType
from typing import NamedTuple

from actfit.kernels.errors import KernelError, shown, warn
from actfit.kernels.memory.isolated import hides_memory
from actfit.kernels.memory.saved import size
from actfit.kernels.memory.step import HIDDEN
from actfit.kernels.methods.planned import WIDTHS
from actfit.kernels.planning.blocks import repeated_modules
from actfit.kernels.planning.budget import Goal, Limits, check, limits
from actfit.kernels.planning.fastest import fastest
from actfit.kernels.planning.plan import Plan
from actfit.kernels.planning.prices import measure
from actfit.kernels.planning.safety import Bound, Checked, checked, squared_bound
from actfit.kernels.planning.search import Candidate, search, smallest
from actfit.kernels.planning.sensitivity import Bits, SiteErrors
from actfit.kernels.planning.solve import InfeasibleError, Solution, error_of, widest
from actfit.kernels.planning.step import Step
from actfit.kernels.planning.task import Task
from actfit.kernels.planning.training import check_optimizer
from actfit.kernels.planning.values import Bytes, Errors, PlannedSite


class _Measured(NamedTuple):
    """A candidate with its errors on other samples."""

    best: Candidate
    errors: Errors = Errors(0.0, 0.0)
    uniform: float = 0.0  # the error of the same bits everywhere
    decoded: Mapping[str, float] = MappingProxyType({})
    verdict: Checked = Checked()


def plan_of(
    task: Task,
    budget: str | float,
    max_gradient_error: Bound | None = None,
    goal: Goal = "time",
    strict: bool = False,
    argument: str = "budget",
) -> Plan:
    """As `make_plan`, for a task; argument: what the user calls the budget."""
    check_optimizer(task.optimizer, check(budget, argument), argument)
    for message in _doubts(task):
        warn(message)
    limit = replace(limits(budget, task.stock.kept, argument), held=task.held.before)
    if limit.peak is not None and limit.peak < task.held.update:
        raise KernelError(
            f"{argument} must be at least {size(task.held.update, up=True)}, got {size(limit.peak)}: weights,"
            f" gradients, batch and {task.held.name} take as much without activations; train fewer weights"
        )
    if limit.include(task.stock.kept, task.stock.peak) and not task.compiles:
        return _unneeded(task, budget, goal)
    outcome = _found(task, limit, max_gradient_error, goal)
    if isinstance(outcome, str):
        warn(f"{argument} must leave the peak as low as it is, got {shown(budget)}: {outcome}")
        return _unneeded(task, budget, goal, outcome)
    best, limit = outcome
    is_coarse = goal == "time" and max_gradient_error is None and not best.time
    goal = "time" if best.time else "error"
    uniform = widest(best.step, limit) if best.codes else {}
    measured = _measured(task, best, uniform, goal) if best.codes else _Measured(best)
    measured.verdict.tell(strict)
    error = measured.errors.measured
    if is_coarse:
        warn(
            f"{argument} must be larger for gradients as exact as the model's dtype is, got {shown(budget)}: those of"
            f' this plan err by {error:.2%}, the least that fits; make_plan(..., goal="error") does not warn of it'
        )
    if isinstance(max_gradient_error, float) and error > max_gradient_error:
        warn(
            f"max_gradient_error must be at least {error:.3g} for this budget on other samples, got"
            f" {max_gradient_error:g}; give a larger budget"
        )
    return _planned(task, budget, goal, measured, uniform)


def _doubts(task: Task) -> Iterator[str]:
    """What a user may not mean."""
    if hides_memory(task.model):
        yield HIDDEN
    if task.training:
        yield (
            "model must be in training mode, got one in eval(), which is planned for as it is in train(); call"
            " model.train() before"
        )
    if task.held.untrained:  # another optimizer may have them, whose state is not counted
        yield (
            f"optimizer must have all weights that want a gradient, got one of {task.held.name} without"
            f" {task.held.untrained} of them; call requires_grad_(False) on what does not train, and leave"
            " room for the state of another optimizer that has the rest"
        )


def _found(task: Task, limit: Limits, bound: Bound | None, goal: Goal) -> tuple[Candidate, Limits] | str:
    """The best solution and the limits that it is within; or why there is none with a peak below the model's own."""
    tries = [(limit, limit.peak is not None)]
    if limit.peak is None:
        gaining = replace(limit, peak=task.stock.peak)
        tries = [(gaining, False), (gaining, True)]
    finds: list[Callable[..., Candidate]] = []
    if goal == "time" or bound == 0:
        prices = cache(partial(measure, task))
        for allowed in dict.fromkeys((squared_bound("dtype" if bound is None else bound, task.model), 0.0)):
            finds.append(partial(fastest, task, bound=allowed, prices=prices))
    if bound != 0:
        finds.append(partial(search, task, bound=None if bound == "dtype" else bound))
    refused: InfeasibleError | None = None
    for find in finds:
        for within, low_peak in tries:
            try:
                return find(within, low_peak=low_peak), within
            except InfeasibleError as error:
                refused = error
    if refused is not None and (bound == 0 or len(tries) == 1):
        raise refused
    step = smallest(task, limit)
    peak, now = step.peak_with(WIDTHS[0]), max(task.stock.peak, 1)
    return (
        f"the peak of a step would be {size(peak)} or more, {peak / now:.3g} × what it is now, as codes are decoded"
        " whole; larger budgets may gain, and deeper models do"
    )


def _measured(task: Task, best: Candidate, uniform: Bits, goal: Goal) -> _Measured:
    """What codes do to the gradient of samples that the plan was not made with; for the goal "error", the better one
    of the solution and of the same bits everywhere."""
    again, solution = best.ways.recomputed, best.solution
    with task.checking(again, solution.bits) as gradients:
        plan_error, uniform_error = gradients.error(solution.bits), gradients.error(uniform)
        if goal == "error":
            to_come = [task.still_to_come(again, best.step, bits) for bits in (solution.bits, uniform)]
            if plan_error + to_come[0] > uniform_error + to_come[1]:
                solution = Solution(uniform, error_of(best.errors, uniform), solution.gap)
                plan_error = uniform_error
        verdict = checked(gradients, solution.bits, solution.error**0.5, plan_error**0.5)
        decoded = gradients.decoded.undiminished(solution.bits)
        smaller = gradients.as_smaller_batch(plan_error, task.planned_on)
    best = best._replace(solution=solution)
    errors = Errors(solution.error**0.5, plan_error**0.5, smaller)
    return _Measured(best, errors, uniform_error**0.5, decoded, verdict)


def _planned(task: Task, budget: str | float, goal: Goal, measured: _Measured, uniform: Bits) -> Plan:
    """The plan of what was found and measured; uniform: the same bits everywhere."""
    best, bits = measured.best, measured.best.solution.bits
    return replace(
        _unneeded(task, budget, goal),
        recomputed=tuple(best.ways.recomputed),
        unchanged=tuple(best.ways.unchanged),
        sites=_sites(best.step, bits, best.errors, measured.decoded),
        planned=Bytes(best.step.kept_with(bits), best.step.peak_with(bits)),
        errors=measured.errors,
        uniform=next(iter(uniform.values()), None) or 0,
        uniform_error=measured.uniform,
        gap=best.solution.gap,
        measured_on=task.measured_on,
        work=task.work(best.step.operations),
        modules={kind: len(alike) for kind, alike in repeated_modules(task.model).items()},
        time=best.time if best.time and (best.measured or task.stand_in is not None) else None,
    )


def _unneeded(task: Task, budget: str | float, goal: Goal, reason: str = "") -> Plan:
    """The plan that changes nothing."""
    name, stock, none = type(task.model).__name__, task.stock, Errors(0.0, 0.0)
    what = str(budget), task.rounding, (), (), stock, stock
    return Plan(
        name, *what, none, 0, 0.0, 0.0,
        compiled=task.compiles, work=1.0, goal=goal, reason=reason, optimizer=task.held.name,
    )  # fmt: skip


def _sites(step: Step, bits: Bits, errors: SiteErrors, decoded: Mapping[str, float]) -> tuple[PlannedSite, ...]:
    again = {number for _, *others in step.alike for number in others}  # of a tensor that an earlier site saves
    return tuple(
        PlannedSite(
            site.name,
            width,
            0 if number in again else site.whole,
            0 if number in again and width is None else site.bytes(width),
            error_of(errors, {site.name: width}),
            decoded=decoded.get(site.name),
        )
        for number, site in enumerate(step.sites)
        for width in (bits[site.name],)
    ) + tuple(PlannedSite(name, None, count, count, 0.0) for name, count in step.whole.items())
