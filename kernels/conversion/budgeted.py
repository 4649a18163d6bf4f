"""Conversion by a plan instead of a method: `convert` takes the plan, or a budget for which it makes one."""

from collections.abc import Mapping
from os import PathLike
from typing import Any

from torch import nn

from kernels.errors import KernelError, shown
from kernels.memory.step import Loss
from kernels.memory.storages import tensors
from kernels.methods.auto import Auto
from kernels.planning.budget import check
from kernels.planning.goals import Goal
from kernels.planning.make import make_plan
from kernels.planning.plan import Plan

STACK_LEVEL = 3  # the caller of convert, seen from the call of make_plan


def check_arguments(
    budget: Any, bound: Any, goal: Any, plan: Any, inputs: Any, method: Any, others: Mapping[str, Any]
) -> None:
    """Raise KernelError for arguments of `convert` that exclude each other; `others` go with methods only."""
    if budget is not None and plan is not None:
        raise KernelError("budget must be left out with plan, which was made for one, got both")
    for name, value in (("max_gradient_error", bound), ("goal", goal)):
        if value is not None and budget is None:
            raise KernelError(f"{name} must go with budget, got {shown(value)}")
    if budget is None and plan is None:
        return
    option = "plan" if budget is None else "budget"
    if method != Auto.name:
        raise KernelError(f"method must be left out with {option}, which decides it, got {shown(method)}")
    for name, value in others.items():
        if value is not None:
            raise KernelError(f"{name} must be left out with {option}, which is of the whole model, got {shown(value)}")
    if budget is not None:
        check(budget)
        if inputs is None:
            raise KernelError("inputs must be given with budget: a batch of training, as convert(model, inputs=x, ...)")
    elif not isinstance(plan, Plan | str | PathLike):
        raise KernelError(f"plan must be a plan or the path of one, got {shown(plan)}")


def _check_trained(model: nn.Module, inputs: Any) -> None:
    """Raise KernelError where no step can be planned: all is frozen, or inputs have sizes of their own."""
    given = list(tensors(inputs))
    parameters = list(model.parameters())
    if not any(x.requires_grad for x in (*parameters, *given)):
        raise KernelError(
            f"model must have a parameter that wants a gradient for a budget, got {len(parameters)} that are all"
            " frozen; call requires_grad_() on those that are trained"
        )
    if any(x.is_nested for x in given):
        raise KernelError(
            "inputs must be dense tensors for a budget, got a nested tensor, which has no codes and does not run on"
            " fake tensors; pack its values into one tensor"
        )


def check_loss(loss: Any, targets: Any, strict: Any, inputs: Any, codes: bool) -> None:
    """Raise KernelError for arguments that measure the gradient's error where it is not measured.

    `codes`: whether `convert` goes by compress, a plan or a budget.
    """
    if not isinstance(strict, bool):
        raise KernelError(f"strict must be True or False, got {shown(strict)}")
    if targets is not None and loss is None:
        raise KernelError("targets must go with loss, which is given them after the output, got no loss")
    if loss is not None and not callable(loss):
        raise KernelError(f"loss must be a function of the model's output, got {shown(loss)}")
    for name, given in (("loss", loss is not None), ("strict", strict)):
        if given and (inputs is None or not codes):
            raise KernelError(
                f"{name} must go with inputs and a budget, a plan or method='compress', whose gradient is measured, got"
                f" {'no inputs' if codes else 'another method'}"
            )


def plan_for(
    model: nn.Module,
    inputs: Any,
    budget: str | float | None,
    loss: Loss | None,
    targets: Any,
    plan: Plan | str | PathLike[str] | None,
    rounding: str | None,
    max_gradient_error: float | None,
    goal: Goal | None,
    strict: bool,
) -> Plan | None:
    """The plan to convert by; None without a budget or plan. Raises KernelError as `make_plan` and `Plan.load` do."""
    if budget is not None:
        _check_trained(model, inputs)
        return make_plan(
            model,
            inputs,
            budget,
            loss=loss,
            targets=targets,
            max_gradient_error=max_gradient_error,
            goal="error" if goal is None else goal,
            rounding=rounding or "nearest",
            strict=strict,
            stack_level=STACK_LEVEL,
        )
    if plan is None:
        return None
    loaded = plan if isinstance(plan, Plan) else Plan.load(plan)
    loaded.check_model(model)
    return loaded
