"""What `compress` may be asked for: which arguments exclude each other, and the plan that a path stands for."""

from os import PathLike
from typing import Any

from actfit.kernels.errors import KernelError, shown
from actfit.kernels.graph.ways.policies import method_of
from actfit.kernels.methods.every_tensor import ROUNDINGS, EveryTensor
from actfit.kernels.methods.method import check_bits
from actfit.kernels.planning.budget import check as check_budget
from actfit.kernels.planning.plan import Plan
from actfit.kernels.planning.training import check_optimizer


def check_request(
    bits: Any,
    rounding: Any,
    plan: Any,
    policy: Any,
    fit: Any,
    chunked_loss: Any,
    compiled: Any,
    optimizer: Any = None,
) -> None:
    """Raise KernelError for invalid values, and for arguments of `compress` that exclude each other."""
    if bits is not None:
        check_bits(bits, EveryTensor.widths)
    if policy is not None:
        method_of(policy)
        for argument, given in (("bits", bits), ("rounding", rounding), ("plan", plan), ("fit", fit)):
            if given is not None:
                raise KernelError(f"{argument} must be None with policy={policy!r}, got {given}; give one of the two")
        if compiled:
            raise KernelError(
                f"policy must be None with compiled=True, got {policy!r}, which has own kernels; leave compiled out"
            )
    for argument, given in (("compiled", compiled), ("chunked_loss", chunked_loss)):
        if given is not None and not isinstance(given, bool):
            raise KernelError(f"{argument} must be True, False or None, got {shown(given)}")
    if rounding is not None and rounding not in ROUNDINGS:
        raise KernelError(f"rounding must be one of {', '.join(ROUNDINGS)}, got {shown(rounding)}")
    if fit is not None:
        if plan is not None:
            raise KernelError("fit must be left out with plan, which was made for a budget")
        if bits is not None:
            raise KernelError(
                f"bits must be left out with fit, which chooses them for each tensor, got {bits}; give one of the two"
            )
        check_optimizer(optimizer, check_budget(fit, "fit"), "fit")
    elif optimizer is not None:
        raise KernelError("optimizer must go with fit, the bytes of a whole training, got no fit")
    if plan is not None and (bits is not None or rounding is not None):
        raise KernelError("bits and rounding must be left out with plan, which says both")
    if rounding is not None and bits is None and fit is None:
        raise KernelError(f"rounding must go with bits or fit, got {rounding!r} without codes to round to")
    if chunked_loss is not None and (fit is not None or plan is not None):
        raise KernelError("chunked_loss must be left out with a plan, which counts on it")


def loaded(plan: Plan | str | PathLike[str], compiled: bool | None) -> Plan:
    """A plan, from its file if need be; raises KernelError for anything else, and as `Plan.load` does."""
    if not isinstance(plan, Plan | str | PathLike):
        raise KernelError(f"plan must be a plan or the path of one, got {shown(plan)}")
    made = plan if isinstance(plan, Plan) else Plan.load(plan)
    if compiled is not None and compiled != made.compiled:
        raise KernelError(
            f"compiled must be that of the plan, {made.compiled}, got {compiled}: compiled blocks save other tensors;"
            " leave it out, or plan anew by compress(model, fit=..., inputs=..., compiled=...)"
        )
    return made
