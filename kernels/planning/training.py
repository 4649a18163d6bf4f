"""A whole training in a budget: what it holds besides activations, and what its optimizer's step takes."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn, optim

from actfit.kernels.errors import KernelError, shown
from actfit.kernels.memory.making import line
from actfit.kernels.memory.step import Living
from actfit.kernels.memory.storages import bytes_of, tensors
from actfit.kernels.methods.registry import near
from actfit.kernels.names import OPTIMIZERS

Optimizer: TypeAlias = str | optim.Optimizer
KINDS = dict(zip(OPTIMIZERS, (optim.AdamW, optim.Adam, optim.SGD, partial(optim.AdamW, fused=True)), strict=True))


@dataclass(frozen=True)
class Held:
    """Bytes of a training besides those that forward and backward make."""

    # There before forward: weights, buffers, the batch, the optimizer's state, and gradients if batches add to them.
    before: int = 0
    update: int = 0  # at the peak of the optimizer's step: all of these, gradients, and what the step works on
    name: str = ""  # of the optimizer's class; "": nothing is counted
    untrained: int = 0  # how many weights that want a gradient the optimizer does not have

    def over(self, peaks: Sequence[int]) -> tuple[int, ...]:
        """The peaks of training, of those of forward and backward over what is there before."""
        return (*(self.before + peak for peak in peaks), *([self.update] if self.name else []))


def check_optimizer(optimizer: Any, budget: Any, argument: str = "budget") -> None:
    """Raise KernelError for what is no optimizer, and for one with a budget that is no whole number of bytes.

    argument: what the user calls the budget.
    """
    if optimizer is None:
        return
    if optimizer not in OPTIMIZERS and not isinstance(optimizer, optim.Optimizer):
        raise KernelError(
            f"optimizer must be one of {', '.join(OPTIMIZERS)}, or a torch.optim.Optimizer, got {shown(optimizer)}"
            + near(getattr(optimizer, "__name__", str(optimizer)), OPTIMIZERS)
        )
    if isinstance(budget, float):
        raise KernelError(
            f'{argument} must be bytes of a whole training with optimizer, as "80GB", got {budget}, a share; leave'
            " optimizer out"
        )


def held_by(model: nn.Module, batch: Any, optimizer: Optimizer, accumulates: bool) -> Held:
    """What training holds besides activations.

    The optimizer's state and what its step works on are those of two steps of a copy of it on tensors without memory.
    It may be before its first step or after; of a name torch's defaults are taken. The weights are the model's
    parameters, and the optimizer's besides. If it accumulates, gradients of earlier batches are there. Raises
    KernelError for an optimizer of other parameters, and for one without state that does not run on such tensors.
    """
    check_optimizer(optimizer, None)
    own = [weight for weight in model.parameters() if weight.requires_grad]
    if not own:
        raise KernelError("optimizer must be left out for a model without parameters that want a gradient")
    if isinstance(optimizer, str):
        optimizer = KINDS[optimizer](own)
    while isinstance(inner := getattr(optimizer, "optimizer", None), optim.Optimizer):
        optimizer = inner  # accelerate wraps it
    ours, theirs = ({id(weight) for weight in weights} for weights in (own, _weights(optimizer)))
    others = [weight for weight in _weights(optimizer) if id(weight) not in ours]
    if not ours & theirs:
        raise KernelError(
            f"optimizer must have parameters of the model, got {type(optimizer).__name__} of others; make it of"
            " model.parameters()"
        )
    state, work = of_step(optimizer)
    there = bytes_of([*model.parameters(), *model.buffers(), *others, *tensors(batch)]) + state
    there += bytes_of(weight for weight in others if weight.requires_grad)  # their gradients are not in a step of ours
    gradients = bytes_of(own)
    before, update = there + accumulates * gradients, there + gradients + work
    return Held(before, update, type(optimizer).__name__, len(ours - theirs))


def of_step(optimizer: optim.Optimizer, on_gpu: bool = False) -> tuple[int, int]:
    """Bytes of the optimizer's state, and of what a step makes besides; on_gpu: wherever its weights are now."""
    copied = _without_memory(optimizer, on_gpu)
    try:
        copied.step()
        with Living() as living:
            copied.step()
    except Exception as error:  # of any kind, as the optimizer raises it
        if state := bytes_of(tensors(optimizer.state)):
            return state, bytes_of(_weights(optimizer))  # as of a step of many tensors at once
        raise KernelError(
            f"optimizer must run on tensors without memory, or have taken a step, got a {type(optimizer).__name__}:"
            f" {line(error)}; give it after a step, or one of {', '.join(OPTIMIZERS)}"
        ) from error
    in_place = all(group.get("fused") for group in optimizer.param_groups)
    return bytes_of(tensors(copied.state)), 0 if in_place else living.peak


def _without_memory(optimizer: optim.Optimizer, on_gpu: bool) -> optim.Optimizer:
    """A copy with gradients; its tensors have no memory, but for single numbers, and it computes as on their device."""
    weights = _weights(optimizer)
    memo: dict[int, Any] = {id(x): _shape(x) for x in tensors(optimizer.state) if x.dim()}
    for weight in weights:
        memo[id(weight)] = like = nn.Parameter(_shape(weight), weight.requires_grad)
        like.grad = _shape(weight) if weight.requires_grad else None
    copied = copy.deepcopy(optimizer, memo)
    on_gpu = on_gpu or all(weight.device.type == "cuda" for weight in weights)
    for group in copied.param_groups:
        if group.get("fused"):  # works in place, which "meta" has no kernels for
            group.update(fused=False, foreach=False)
        elif on_gpu and group.get("foreach", False) is None:  # torch's default there: many tensors at once
            group["foreach"] = True
        if "capturable" in group:
            group["capturable"] = False
    return copied


def _weights(optimizer: optim.Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _shape(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device="meta")
