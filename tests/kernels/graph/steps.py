"""A training step of a model: its loss, its gradients and what it saved, as stock, compressed, or with a plain hook."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from actfit.kernels.engine import dense
from tests.kernels.saved import bytes_in_graph


class Step(NamedTuple):
    """The loss, the gradients (None where a parameter has none), and the bytes that were saved for backward."""

    loss: Tensor
    gradients: list[Tensor | None]
    saved: int


def step(model: nn.Module, inputs: Mapping[str, Any], hook: Any = None) -> Step:
    """A step with random numbers from the same seed each time."""
    model.zero_grad()
    torch.manual_seed(3)
    with hook or nullcontext():
        output = model(**inputs)
        loss: Tensor = output if isinstance(output, Tensor) else output.loss
    held = [*model.parameters(), *model.buffers(), *(x for x in inputs.values() if isinstance(x, Tensor))]
    saved = 0 if hook else bytes_in_graph(loss, held)
    loss.backward()
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return Step(loss.detach(), gradients, saved)


def same(first: Step, second: Step) -> bool:
    """Whether loss and gradients are the same, bit for bit, with the same gradients missing."""
    pairs = zip(first.gradients, second.gradients, strict=True)
    return torch.equal(first.loss, second.loss) and all(
        b is None if a is None else b is not None and torch.equal(a, b) for a, b in pairs
    )


def error(measured: Step, exact: Step) -> float:
    """The relative error of all gradients; a missing one counts as zeros."""

    def flat(gradients: list[Tensor | None]) -> Tensor:
        filled = [
            torch.zeros_like(other) if gradient is None else gradient
            for gradient, other in zip(gradients, exact.gradients, strict=True)
            if other is not None
        ]
        return torch.cat([gradient.double().flatten() for gradient in filled])

    truth = flat(exact.gradients)
    return float((flat(measured.gradients) - truth).norm() / truth.norm())


def plain_hook(model: nn.Module, bits: int, smallest: int, group: int = 64) -> Any:
    """Saved-tensor hooks that code each floating-point tensor but parameters, whatever it is for."""
    kept = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def pack(x: Tensor) -> Callable[[], Tensor]:
        if not x.is_floating_point() or x.numel() < smallest or x.untyped_storage().data_ptr() in kept:
            return lambda: x
        codes, shape, dtype = dense.encode(x.detach().reshape(-1), None, group, bits), x.shape, x.dtype
        return lambda: dense.decode(*codes, group, shape.numel(), dtype).view(shape)

    return saved_tensors_hooks(pack, lambda made: made())
