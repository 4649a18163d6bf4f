"""The two ops, actfit::forward and actfit::backward, that all functions and methods go through.

As ops of torch.library, with fake implementations, they are what torch.compile sees: it neither looks inside nor computes
them again, so what forward saves is what is kept.
"""

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from kernels import launch, reference
from kernels.errors import KernelError
from kernels.kernel import parse

_VMAP = "torch.func.vmap must not be applied to actfit's ops, which pack bits over whole tensors; use method='stock'"


def backend(device: torch.device | str = "cuda") -> str:
    """Which code runs tensors of a device: "triton", "triton interpreter" or "torch"."""
    kind = torch.device(device).type
    if find_spec("triton") is None:
        return "torch"
    if kind == "cuda":
        return "triton"
    if kind == "cpu" and _interpreter_asked_for():
        return "triton interpreter"
    return "torch"


def _interpreter_asked_for() -> bool:
    from triton import knobs

    return bool(knobs.runtime.interpret)


def _runs_triton(tensor: Tensor) -> bool:
    return tensor.dtype != torch.float64 and backend(tensor.device) != "torch"


def _forward(x: Tensor, kernel: str, params: Sequence[float]) -> tuple[Tensor, Tensor]:
    run = launch.forward if _runs_triton(x) else reference.forward
    return run(parse(kernel), x, params)


def _backward(grad: Tensor, y: Tensor | None, saved: Tensor, kernel: str, params: Sequence[float]) -> Tensor:
    run = launch.backward if _runs_triton(grad) else reference.backward
    return run(parse(kernel), grad, y, saved, params)


def _forward_fake(x: Tensor, kernel: str, params: Sequence[float]) -> tuple[Tensor, Tensor]:
    found = parse(kernel)
    if found.saves in ("slope", "sign-bit"):
        return torch.empty_like(x), torch.empty_like(x)
    return torch.empty_like(x), x.new_empty(found.packed_shape(x.numel()), dtype=torch.uint8)


def _backward_fake(grad: Tensor, y: Tensor | None, saved: Tensor, kernel: str, params: Sequence[float]) -> Tensor:
    return torch.empty_like(grad)


def _refuse_vmap(*_: object) -> None:
    raise KernelError(_VMAP)


torch.library.define("actfit::forward", "(Tensor x, str kernel, float[] params) -> (Tensor, Tensor)")
torch.library.define(
    "actfit::backward", "(Tensor grad, Tensor? y, Tensor saved, str kernel, float[] params) -> Tensor"
)
torch.library.impl("actfit::forward", "CompositeExplicitAutograd", _forward)
torch.library.impl("actfit::backward", "CompositeExplicitAutograd", _backward)
torch.library.register_fake("actfit::forward", _forward_fake)
torch.library.register_fake("actfit::backward", _backward_fake)
torch.library.register_vmap("actfit::forward", _refuse_vmap)
torch.library.register_vmap("actfit::backward", _refuse_vmap)
