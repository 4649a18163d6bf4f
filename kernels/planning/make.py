"""Planning: observe a step, measure what codes do to the gradient, solve, and check on other samples."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from actfit.coefficients.progress import shown as shown_progress
from actfit.kernels import private
from actfit.kernels.errors import KernelError, shown
from actfit.kernels.memory.making import line
from actfit.kernels.memory.measure import has_forward
from actfit.kernels.memory.step import Loss
from actfit.kernels.planning.batches import Call, call_of, enough, on_samples
from actfit.kernels.planning.budget import GOALS, Goal
from actfit.kernels.planning.plan import Plan
from actfit.kernels.planning.planner import plan_of
from actfit.kernels.planning.safety import Bound, check_bound
from actfit.kernels.planning.task import PASSES, SAMPLES, StandIn, Task, written_by
from actfit.kernels.planning.training import Optimizer


def make_plan(
    model: nn.Module,
    inputs: Any,
    budget: str | float,
    *,
    loss: Loss | None = None,
    targets: Any = None,
    max_gradient_error: Bound | None = None,
    goal: Goal = "time",
    rounding: str = "nearest",
    samples: int = SAMPLES,
    passes: int = PASSES,
    stand_in: StandIn | None = None,
    compiled: bool = False,
    optimizer: Optimizer | None = None,
    accumulates: bool = False,
    strict: bool = False,
    progress: Callable[[str], object] | None = None,
) -> Plan:
    """The fastest plan for a budget of memory, or that of least error; the model does not change.

    See docs/how-to/budget.md.

    Parameters
    ----------
    model
        The model as it trains, not compressed yet and on its device. It may have fake tensors, with a `stand_in`.
    inputs
        A whole training batch: a tensor, a tuple of arguments, or a mapping of keyword arguments.
    budget
        Bytes at the peak of a step over those from before, or of all with `optimizer`, as "24GiB"; or, between 0 and 1,
        a share of the bytes that the model saves for backward now, in eager mode.
    loss, targets
        The loss, a function of the model's output and, if given, of the batch's targets. By default the output's own
        loss, as in transformers' models with labels, or else random linear functions.
    max_gradient_error
        Bound on ||g' - g|| / ||g||. 0: no tensor is quantized. "dtype", the default with the goal "time": four times
        the rounding of the coarsest dtype in training, which changes a gradient by as much anyway; 3.1 % in bfloat16,
        in float32 no tensor is quantized. With the goal "error" by default the error of 4 bits everywhere. A default
        is exceeded if nothing else fits.
    goal
        "time": the shortest step, by times that are measured on the model's device. "error": the least error; above the
        bound the first blocks are computed again, as few as possible. The plan's `goal` is "error" if no plan within
        the bound fits.
    rounding
        "nearest" or "stochastic".
    samples, passes
        How many samples of the batch errors are measured on, and by how many backward passes, at least three for each
        kind of saved tensor. As many other samples check the plan.
    stand_in
        A narrow model with modules of the same names, its inputs, and its targets if the loss takes any: errors are
        measured on it if the model itself is too large.
    compiled
        Whether the plan is for blocks that Inductor compiles, as `compress(model, plan=plan)` then does.
    optimizer
        A torch.optim.Optimizer, or "adamw", "adamw-fused", "adam" or "sgd" with torch's defaults: the budget is of a
        whole training, with weights, buffers, the batch, the optimizer's state, gradients from when backward makes
        them, and what the optimizer's step takes. State is that of a step on tensors without memory, or what the
        optimizer has.
    accumulates
        Whether gradients of several batches are added up, and are there throughout; with `optimizer`.
    strict
        Whether to raise KernelError, not warn, where the plan's error on the checking samples is more than three times
        what is predicted, or what errors of its tensors account for; both name the tensors that do it.
    progress
        Called with a text for each thing that is being done. None: after two seconds a terminal shows them.

    Returns
    -------
    Plan
        Its error on the checking samples is at most `max_gradient_error`; with the goal "error", that of the widest
        codes that fit with the same bits everywhere.

    Raises
    ------
    KernelError
        For a budget that is too small, with the smallest possible; for a model that does not run on fake tensors.
    """
    check_bound(max_gradient_error)
    if not isinstance(strict, bool):
        raise KernelError(f"strict must be True or False, got {shown(strict)}")
    if goal not in GOALS:
        raise KernelError(f"goal must be one of {', '.join(GOALS)}, got {shown(goal)}")
    given = model, call_of(inputs), loss, targets, rounding, samples, passes, stand_in
    with reported(progress) as doing:
        task = task_of(*given, doing, compiled, optimizer, accumulates)
        return plan_of(task, budget, max_gradient_error, goal, strict)


def plan_to_fit(model: nn.Module, inputs: Any, fit: str | float, **named: Any) -> Plan:
    """As `make_plan`, of the argument `fit` of `compress`, as messages call it; `named`: as of `Task`."""
    with reported(None) as doing:
        task = task_of(model, call_of(inputs), progress=doing, **named)
        return plan_of(task, fit, argument="fit")


def reported(progress: Callable[[str], object] | None) -> AbstractContextManager[Callable[[str], object]]:
    """A context with a function for texts of what is being done: as given, or one that shows them on a terminal."""
    if progress is not None and not callable(progress):
        raise KernelError(f"progress must be a function of a text, or None, got {shown(progress)}")
    return shown_progress() if progress is None else nullcontext(progress)


def task_of(*given: Any, **named: Any) -> Task:
    """A task, of arguments as of `Task`; raises KernelError for wrong ones, and for a batch that does not run."""
    from actfit.kernels.graph.install import not_compressed  # they need this package
    from actfit.kernels.graph.planning import CapturedTask

    task = CapturedTask(*given, **named)
    _check(task)
    not_compressed(task.model)
    _check_batch(task)
    return task


def _check(task: Task) -> None:
    if not isinstance(task.model, nn.Module):
        raise KernelError(f"model must be a torch.nn.Module, got {shown(task.model)}")
    if not has_forward(task.model):
        raise KernelError(
            f"model must have a forward to be planned for, got {type(task.model).__name__}; give a module whose forward"
            " makes the calls of a step"
        )
    for name, count in (("samples", task.samples), ("passes", task.passes)):
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise KernelError(f"{name} must be a whole number of 1 or more, got {shown(count)}")
    for name, flag in (("compiled", task.compiles), ("accumulates", task.accumulates)):
        if not isinstance(flag, bool):
            raise KernelError(f"{name} must be True or False, got {shown(flag)}")
    match task.stand_in:
        case None | (nn.Module(), _) | (nn.Module(), _, _):
            return
    raise KernelError(f"stand_in must be (model, inputs) or (model, inputs, targets), got {shown(task.stand_in)}")


def _check_batch(task: Task) -> None:
    """Raise KernelError if a few samples do not run: fake tensors let some mistakes pass, as wrong dtypes."""
    model, at = task.model, "inputs"
    there = [*model.parameters(), *model.buffers(), *private.tree_leaves((*task.call, task.targets))]
    if any(private.is_fake(x) or x.is_meta for x in there if isinstance(x, Tensor)):
        return

    def run(call: Call, targets: Any, _: float) -> None:
        nonlocal at
        at = "inputs"
        output = model(*call.args, **call.kwargs)
        at = "loss" if targets is None else "targets"
        if task.loss is not None:
            task.loss(output) if targets is None else task.loss(output, targets)

    samples = enough(model, (task.call, task.targets), task.samples)
    try:
        task.written[:] = written_by(model, partial(on_samples, task.call, task.targets, samples, False, run))
    except KernelError:
        raise
    except (MemoryError, torch.OutOfMemoryError):  # a plan may need less
        return
    except Exception as error:  # of any kind, as the model raises it
        raise KernelError(
            f"{at} must be what a step of training runs with, got {line(error)}; check names, shapes and dtypes"
        ) from error
