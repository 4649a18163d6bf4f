"""Eager ops. Compiled code uses `traced` where `traceable` allows; otherwise these, opaque.

torch.compile neither looks inside nor recomputes them, so what forward saves stays saved.

    forward, backward                  a function of the catalogue by a method
    levels                             the levels of a table's codes
    gated, gated_backward              f(a) * b
    fused_forward, fused_backward      a function that a user wrote
    encode_groups, decode_groups       K-bit codes of groups of neighbours

Each op runs its namesake in `launch` or `launch_codes` where Triton kernels take the tensor, else in `reference` or
`reference_codes`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from actfit.kernels.engine import host, launch, launch_codes, reference, reference_codes
from actfit.kernels.engine.backend import runs_triton
from actfit.kernels.engine.codes import room_for
from actfit.kernels.engine.elements import allocate
from actfit.kernels.engine.emitted import emitted_function
from actfit.kernels.engine.planes import plane_bytes
from actfit.kernels.methods.method import spec_of
from actfit.kernels.private import is_fake

Op = tuple[str, Callable[..., Any], Callable[..., Any]]
Codes = tuple[Tensor, Tensor, Tensor]
ALLOWED_GROUPS = range(8, 1025, 8)  # so that each row of eight elements is of one group, and a program has whole groups


def _run(name: str, x: Tensor, *args: Any) -> Any:
    """The result of an op's namesake for a tensor's device."""
    return getattr(launch if runs_triton(x) else reference, name)(*args)


def _levels(saved: Tensor, kernel: str, count: int, dtype: torch.dtype) -> Tensor:
    run = launch.levels if runs_triton(saved) and dtype != torch.float64 else reference.levels
    return run(spec_of(kernel), saved, count, dtype)


def _forward_fake(x: Tensor, kernel: str, params: Sequence[float], order: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(x.permute(*order) if order else x, memory_format=torch.contiguous_format)
    return y, allocate(spec_of(kernel), y)


def _fused_forward_fake(x: Tensor, key: str, with_derivatives: bool) -> list[Tensor]:
    return [torch.empty_like(x) for _ in range(emitted_function(key).count * (2 if with_derivatives else 1))]


def _codes_of(x: Tensor) -> Any:
    """What codes a tensor; of fake ones the dispatcher knows the results."""
    return torch.ops.actfit if is_fake(x) else launch_codes if runs_triton(x) else reference_codes


def encode(x: Tensor, *others: Any) -> Tensor:
    """Codes of x by the minimum and the inverse scale of each group, see `reference_codes.encode`."""
    if is_fake(x):
        return room_for(x, others[-1])
    codes: Tensor = _codes_of(x).encode(x, *others)
    return codes


def encode_groups(x: Tensor, noise: Tensor | None, group_size: int, bits: int) -> Codes:
    """Codes, see `actfit.kernels.engine.codes`, minima and scales, bfloat16 [groups], of a flat contiguous tensor.

    noise: float32 in [0, 1), of the shape of x, for stochastic rounding; None: to the nearest.
    """
    _check_group(group_size)
    if noise is not None and noise.numel() != x.numel():
        raise ValueError(f"noise must have a number for each of the {x.numel()} elements, got {noise.numel()}")
    made: Codes = _codes_of(x).encode_groups(x, noise, group_size, bits)
    return made


def decode_groups(
    codes: Tensor, minimum: Tensor, scale: Tensor, group_size: int, count: int, dtype: torch.dtype
) -> Tensor:
    """The flat tensor of `encode_groups`, `count` elements of the type."""
    _check_group(group_size)
    run, groups = _codes_of(codes), -(-count // group_size)
    if run is not torch.ops.actfit:  # sizes of fakes may be symbols
        if not minimum.numel() == scale.numel() == groups:
            raise ValueError(f"minimum and scale must have {groups} entries, got {len(minimum)} and {len(scale)}")
        length = count if codes.dim() == 1 else plane_bytes(count)
        if codes.dtype != torch.uint8 or codes.shape[-1] != length:
            raise ValueError(f"codes must be uint8 of length {length}, got {codes.dtype} of {tuple(codes.shape)}")
        run = reference_codes if dtype == torch.float64 else run
    values: Tensor = run.decode_groups(codes, minimum, scale, group_size, count, dtype)
    return values


def _check_group(group_size: int) -> None:
    if group_size not in ALLOWED_GROUPS:
        raise ValueError(f"group_size must be a multiple of 8, at most {ALLOWED_GROUPS[-1]}, got {group_size}")


def pack(x: Tensor) -> Tensor:
    """Flat bools as bits, uint8 [ceil(n/8)]."""
    if is_fake(x):
        return x.new_empty(plane_bytes(x.numel()), dtype=torch.uint8)
    return launch_codes.pack(x) if runs_triton(x) else host.pack(x, 1)[0]


def unpack(packed: Tensor, count: int) -> Tensor:
    """The reverse: bool [count]."""
    if is_fake(packed):
        return packed.new_empty(count, dtype=torch.bool)
    if runs_triton(packed):
        return launch_codes.unpack(packed, count)
    return host.unpack(packed[None], count).view(torch.bool)


def _encode_groups_fake(x: Tensor, noise: Tensor | None, group_size: int, bits: int) -> Codes:
    groups = (x.numel() + group_size - 1) // group_size
    ends = (x.new_empty(groups, dtype=torch.bfloat16) for _ in range(2))
    return room_for(x, bits), *ends


_OPS: dict[str, Op] = {
    "forward": (
        "(Tensor x, str kernel, float[] params, int[] order=[]) -> (Tensor, Tensor)",
        lambda x, kernel, *others: _run("forward", x, spec_of(kernel), x, *others),
        _forward_fake,
    ),
    "backward": (
        "(Tensor grad, Tensor? y, Tensor saved, str kernel, float[] params) -> Tensor",
        lambda grad, y, saved, kernel, params: _run("backward", grad, spec_of(kernel), grad, y, saved, params),
        lambda grad, *_: torch.empty_like(grad),
    ),
    "levels": (
        "(Tensor saved, str kernel, SymInt count, ScalarType dtype) -> Tensor",
        _levels,
        lambda saved, _, count, dtype: saved.new_empty(count, dtype=dtype),
    ),
    "gated": (
        "(Tensor a, Tensor b, str function) -> Tensor",
        lambda a, b, function: _run("gated", a, function, a, b),
        lambda a, *_: torch.empty_like(a),
    ),
    "gated_backward": (
        "(Tensor grad, Tensor a, Tensor b, str function) -> (Tensor, Tensor)",
        lambda grad, a, b, function: _run("gated_backward", a, function, grad, a, b),
        lambda grad, a, b, _: (torch.empty_like(a), torch.empty_like(b)),
    ),
    "fused_forward": (
        "(Tensor x, str key, bool with_derivatives) -> Tensor[]",
        lambda x, *others: _run("fused_forward", x, x, *others),
        _fused_forward_fake,
    ),
    "fused_backward": (
        "(Tensor[] grads, Tensor[] derivatives) -> Tensor",
        lambda grads, derivatives: _run("fused_backward", derivatives[0], grads, derivatives),
        lambda _, derivatives: torch.empty_like(derivatives[0]),
    ),
    "encode_groups": (
        "(Tensor x, Tensor? noise, int group_size, int bits) -> (Tensor, Tensor, Tensor)",
        encode_groups,
        _encode_groups_fake,
    ),
    "decode_groups": (
        "(Tensor codes, Tensor minimum, Tensor scale, int group_size, SymInt count, ScalarType dtype) -> Tensor",
        decode_groups,
        lambda codes, minimum, scale, group_size, count, dtype: codes.new_empty(count, dtype=dtype),
    ),
}  # fmt: skip

# Inductor must not change strides: kernels take contiguous tensors, or the strides decide the last bits.
STRIDES = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)

for _name, (_schema, _function, _fake) in _OPS.items():
    torch.library.define(f"actfit::{_name}", _schema, tags=STRIDES)
    torch.library.impl(f"actfit::{_name}", "CompositeExplicitAutograd", _function)
    torch.library.register_fake(f"actfit::{_name}", _fake)
