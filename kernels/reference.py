"""The same on tensors of any device in plain PyTorch: what CPU tensors run, and the measure of the Triton kernels.

Works through the tensor piece by piece, so that what is computed on the way takes a few megabytes and no more.
"""

from collections.abc import Iterator, Sequence
from types import ModuleType

import torch
from torch import Tensor

from kernels.emitted import find, module_of
from kernels.kernel import Kernel, facts, table
from kernels.packing import pack, plane_bytes, unpack

_FEW = 32  # borders that are compared one by one
PIECE = 1 << 20  # elements: enough for every core; a multiple of 8, as pieces are packed one by one
_BITS_OF = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that is computed in: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _wide(values: Tensor) -> Tensor:
    return values.to(_wide_dtype(values.dtype))


def _pieces(count: int) -> Iterator[slice]:
    return (slice(start, min(start + PIECE, count)) for start in range(0, count, PIECE))


def _values(known: ModuleType, x: Tensor, params: Sequence[float]) -> Tensor:
    """f(x) by PyTorch's own function, of x as a whole and as it lies: its vector and scalar code, and oneDNN's, differ
    in the last bits. Where that rounds more than once, in 16 bits, f(x) in float32, contiguous."""
    if known.ROUNDS_ONCE or x.dtype == _wide_dtype(x.dtype):
        y: Tensor = known.forward(x, params)
        return y.to(x.dtype)  # autocast lets some functions give float32
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    flat_x, flat_y = x.reshape(-1), y.view(-1)
    for piece in _pieces(x.numel()):
        flat_y[piece] = known.forward(_wide(flat_x[piece]), params)
    return y


def forward(kernel: Kernel, x: Tensor, params: Sequence[float], order: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """y = f(x) and what is saved, of an x of any strides; both contiguous, the dimensions of y in `order`."""
    y = _values(kernel.facts, x, params)
    x, y = (one.permute(*order) if order else one for one in (x, y))
    y = y.contiguous()
    saved = kernel.empty(y)
    flat_x, flat_y = x.reshape(-1), y.view(-1)
    for piece in _pieces(x.numel()):
        wide = _wide(flat_x[piece])
        match kernel.saves:
            case "slope":
                saved.view(-1)[piece] = kernel.facts.derivative(wide, params)
            case "side" | "codes" | "table":
                codes = kernel.facts.side(wide, params).byte() if kernel.saves == "side" else _codes(kernel, wide)
                saved[:, piece.start // 8 : plane_bytes(piece.stop)] = pack(codes, kernel.stored_bits)
            case "precision-bit":
                flat_y[piece] += 0.0  # -0 becomes 0: with its lowest bit set it would lie below all of f
                left = ~kernel.facts.side(wide, params)
                bits = flat_y[piece].view(_BITS_OF[x.dtype])
                bits.copy_(torch.where(left, bits | 1, bits & ~1))
            case "sign-bit":
                # Of f(x) before it is rounded to y: near the minimum the difference has more digits than y.
                above = (kernel.facts.forward(wide, params) - kernel.facts.MINIMUM).clamp(min=0)
                saved.view(-1)[piece] = torch.where(kernel.facts.side(wide, params), above, -above)
    return y, saved


def gated(function: str, a: Tensor, b: Tensor) -> Tensor:
    """h = f(a) * b, of contiguous tensors."""
    h, known = torch.empty_like(a), facts(function)
    flat_a, flat_b, flat_h = a.view(-1), b.view(-1), h.view(-1)
    for piece in _pieces(a.numel()):
        flat_h[piece] = known.forward(_wide(flat_a[piece]), ()) * _wide(flat_b[piece])
    return h


def gated_backward(function: str, grad: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """grad * b * f'(a) and grad * f(a), of contiguous tensors."""
    da, db, known = torch.empty_like(a), torch.empty_like(b), facts(function)
    flat_grad, flat_a, flat_b, flat_da, flat_db = (one.view(-1) for one in (grad, a, b, da, db))
    for piece in _pieces(a.numel()):
        g, wide = _wide(flat_grad[piece]), _wide(flat_a[piece])
        flat_da[piece] = g * _wide(flat_b[piece]) * known.derivative(wide, ())
        flat_db[piece] = g * known.forward(wide, ())
    return da, db


def fused_forward(x: Tensor, key: str, slopes: bool) -> list[Tensor]:
    """The results of an emitted function, and its slopes where they are asked for, of a contiguous x."""
    found = module_of(key, "torch", "float32")  # the text is the same for all dtypes
    run, times = (found.element, 2) if slopes else (found.values, 1)
    made = [torch.empty_like(x) for _ in range(find(key).count * times)]
    flat_x, flat = x.reshape(-1), [one.view(-1) for one in made]
    for piece in _pieces(x.numel()):
        for whole, part in zip(flat, run(_wide(flat_x[piece])), strict=True):
            whole[piece] = part
    return made


def fused_backward(grads: Sequence[Tensor], slopes: Sequence[Tensor]) -> Tensor:
    """The sum of grad * slope, of contiguous tensors."""
    dx = torch.empty_like(slopes[0])
    flat_dx = dx.view(-1)
    flat = [(grad.reshape(-1), slope.view(-1)) for grad, slope in zip(grads, slopes, strict=True)]
    for piece in _pieces(dx.numel()):
        first, *others = (_wide(grad[piece]) * _wide(slope[piece]) for grad, slope in flat)
        flat_dx[piece] = sum(others, first)
    return dx


def _codes(kernel: Kernel, wide: Tensor) -> Tensor:
    steps = table(kernel.key)
    if len(steps.borders) > _FEW:
        borders = wide.new_tensor(steps.borders, dtype=torch.float64)
        codes = wide.new_tensor(steps.codes, dtype=torch.uint8)
        return codes[
            torch.bucketize(wide.double().nan_to_num(-torch.inf), borders)
        ]  # NaN: the first, as comparisons do
    codes = torch.full_like(wide, steps.codes[0], dtype=torch.uint8)
    # Over each border the code goes up or down, mostly by one; in uint8, -1 is 255.
    for border, before, after in zip(steps.compared(wide.dtype), steps.codes, steps.codes[1:], strict=False):
        codes += (wide > border).view(torch.uint8) * ((after - before) % 256)
    return codes


def backward(kernel: Kernel, grad: Tensor, y: Tensor | None, saved: Tensor, params: Sequence[float]) -> Tensor:
    """dx = grad * f'(x), of contiguous tensors."""
    dx = torch.empty_like(grad)
    flat_grad, flat_dx = grad.reshape(-1), dx.view(-1)
    flat_y = None if y is None else y.reshape(-1)
    for piece in _pieces(grad.numel()):
        wide = _wide(flat_grad[piece])
        flat_dx[piece] = wide * _slope(kernel, flat_y, saved, params, piece, wide.dtype)
    return dx


def _slope(
    kernel: Kernel, y: Tensor | None, saved: Tensor, params: Sequence[float], piece: slice, wide: torch.dtype
) -> Tensor:
    """f'(x) of a piece, as what was saved tells it."""
    count = piece.stop - piece.start
    packed = saved[:, piece.start // 8 : plane_bytes(piece.stop)] if kernel.stored_bits else saved
    if kernel.saves == "slope":
        return _wide(saved.view(-1)[piece])
    if kernel.method == "fewbit":
        levels = torch.tensor(table(kernel.key).levels, dtype=wide, device=saved.device)
        return levels.index_select(0, unpack(packed, count).int())
    if kernel.saves == "sign-bit":
        signed = saved.view(-1)[piece]
        above = _wide(signed).abs() + kernel.facts.MINIMUM
        return _formula(kernel, signed.dtype, above, ~torch.signbit(signed), params)
    if y is None:
        raise RuntimeError(f"{kernel.key} needs y")
    stored = y[piece]
    if kernel.saves == "output":
        return _formula(kernel, stored.dtype, _wide(stored), None, params)
    if kernel.saves == "side":
        side = unpack(packed, count).bool()
    else:
        side = (stored.view(_BITS_OF[stored.dtype]) & 1) == 0
    return _formula(kernel, stored.dtype, _wide(stored), side, params)


def _formula(kernel: Kernel, dtype: torch.dtype, y: Tensor, side: Tensor | None, params: Sequence[float]) -> Tensor:
    """The emitted slope for a dtype; float64 has float32's."""
    name = "float32" if dtype == torch.float64 else str(dtype).removeprefix("torch.")
    slope = getattr(kernel.facts, f"slope_{name}")
    result: Tensor = slope(y, params) if side is None else slope(y, side, params)
    return result
