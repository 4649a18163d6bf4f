"""The ops of approximate backprop, as `kernels.ops` has those of activations: torch.compile looks into none of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels.approx_backprop import launch, reference
from kernels.ops import register, runs_triton
from kernels.packing import plane_bytes


def _either(name: str) -> Callable[..., Any]:
    def run(first: Tensor, *others: Any) -> Any:
        return getattr(launch if runs_triton(first) else reference, name)(first, *others)

    return run


def _decode(planes: Tensor, *others: Any) -> Tensor:
    run = launch if runs_triton(planes) and others[-1] != torch.float64 else reference
    found: Tensor = run.decode(planes, *others)
    return found


def _ends_fake(x: Tensor, run: int, wide: int, tokens: int, bits: int) -> tuple[Tensor, Tensor]:
    groups = x.numel() // tokens * ((tokens + run - 1) // run)
    return x.new_empty(groups, dtype=torch.bfloat16), x.new_empty(groups, dtype=torch.bfloat16)


def _encode_fake(
    x: Tensor, center: Tensor, scale: Tensor, offset: Tensor, noise: Tensor | None, *others: int
) -> Tensor:
    bits = others[-1]
    return x.new_empty((bits, plane_bytes(x.numel())), dtype=torch.uint8)


def _decode_fake(planes: Tensor, *others: Any) -> Tensor:
    *_, count, dtype = others
    return planes.new_empty(count, dtype=dtype)


def _rectify_fake(x: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty((1, plane_bytes(x.numel())), dtype=torch.uint8)


def _rectify_backward_fake(grad: Tensor, signs: Tensor, slope: float) -> Tensor:
    return torch.empty_like(grad)


register(
    {
        "ends": (
            "(Tensor x, SymInt run, SymInt wide, SymInt tokens, int bits) -> (Tensor, Tensor)",
            _either("ends"),
            _ends_fake,
        ),
        "encode": (
            "(Tensor x, Tensor center, Tensor scale, Tensor offset, Tensor? noise,"
            " SymInt run, SymInt wide, SymInt tokens, int bits) -> Tensor",
            _either("encode"),
            _encode_fake,
        ),
        "decode": (
            "(Tensor planes, Tensor step, Tensor base, SymInt run, SymInt wide, SymInt tokens, Tensor? gain,"
            " Tensor? bias, SymInt inner, Tensor? signs, float slope, bool clamp, SymInt count,"
            " ScalarType dtype) -> Tensor",
            _decode,
            _decode_fake,
        ),
        "rectify": ("(Tensor x, float slope) -> (Tensor, Tensor)", _either("rectify"), _rectify_fake),
        "rectify_backward": (
            "(Tensor grad, Tensor signs, float slope) -> Tensor", _either("rectify_backward"), _rectify_backward_fake
        ),
    }
)  # fmt: skip
