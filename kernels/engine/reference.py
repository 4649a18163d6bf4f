"""The element-wise ops in plain PyTorch, on any device: what CPU tensors run, and the reference of the Triton kernels.

Works through the tensor piece by piece, so that what is computed on the way takes a few megabytes and no more.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.engine.elements import INTEGERS, allocate, computed, dtype_name, table_of, torch_elements, widened
from kernels.engine.emitted import find, module_of
from kernels.engine.pieces import bytes_of, pieces
from kernels.engine.planes import pack, unpack
from kernels.methods.method import KernelSpec

_FEW = 64  # borders that are compared one by one


def _values(spec: KernelSpec, x: Tensor, params: Sequence[float]) -> Tensor:
    """f(x) by PyTorch's own function, of x as a whole and as it lies: its vector and scalar code, and oneDNN's, differ
    in the last bits. Where that rounds more than once, in 16 bits, f(x) in float32, contiguous."""
    elements = torch_elements(spec.function.name)
    if spec.function.rounds_once or x.dtype == computed(x.dtype):
        y: Tensor = elements.forward(x, params)
        return y.to(x.dtype)  # autocast lets some functions give float32
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    flat_x, flat_y = x.reshape(-1), y.view(-1)
    for piece in pieces(x.numel()):
        flat_y[piece] = elements.forward(widened(flat_x[piece]), params)
    return y


def forward(spec: KernelSpec, x: Tensor, params: Sequence[float], order: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """y = f(x) and what is saved, of an x of any strides; both contiguous, the dimensions of y in `order`."""
    elements, y = torch_elements(spec.function.name), _values(spec, x, params)
    x, y = (tensor.permute(*order) if order else tensor for tensor in (x, y))
    y = y.contiguous()
    saved = allocate(spec, y)
    flat_x, flat_y = x.reshape(-1), y.view(-1)
    for piece in pieces(x.numel()):
        wide = widened(flat_x[piece])
        match spec.storage.name:
            case "derivative":
                saved.view(-1)[piece] = elements.derivative(wide, params)
            case "branch_bit":
                saved[:, bytes_of(piece)] = pack(elements.branch_bit(wide, params).byte(), 1)
            case "codes" | "table_codes":
                saved[:, bytes_of(piece)] = pack(_codes(spec, wide), spec.stored_bits)
            case "marked_output":
                flat_y[piece] += 0.0  # -0 becomes 0: with its lowest bit set it would lie below all of f
                left = ~elements.branch_bit(wide, params)
                bits = flat_y[piece].view(INTEGERS[x.dtype])
                bits.copy_(torch.where(left, bits | 1, bits & ~1))
            case "signed_output":
                # Of f(x) before it is rounded to y: near the minimum the difference has more digits than y.
                above = (elements.forward(wide, params) - spec.function.minimum).clamp(min=0)
                saved.view(-1)[piece] = torch.where(elements.branch_bit(wide, params), above, -above)
    return y, saved


def _codes(spec: KernelSpec, wide: Tensor) -> Tensor:
    table, wide = table_of(spec), wide.detach()
    compared = table.borders if wide.dtype == torch.float64 else table.float32_borders
    if len(compared) > _FEW:
        codes = wide.new_tensor(table.codes, dtype=torch.uint8)
        # NaN has the first code, as by comparisons.
        numbers = wide.nan_to_num(-torch.inf, torch.inf, -torch.inf)
        return codes.index_select(0, torch.bucketize(numbers, wide.new_tensor(compared), out_int32=True))
    # Over each border the code goes up or down. In floating point, as comparisons that give bools take four times as
    # long; and from there to uint8 by way of int32, as straight on takes several times as long.
    places, above = torch.full_like(wide, table.codes[0]), torch.empty_like(wide)
    for border, before, after in zip(compared, table.codes, table.codes[1:], strict=False):
        places.add_(torch.gt(wide, border, out=above), alpha=after - before)
    return places.to(torch.int32).to(torch.uint8)


def backward(spec: KernelSpec, grad: Tensor, y: Tensor | None, saved: Tensor, params: Sequence[float]) -> Tensor:
    """dx = grad * f'(x), of contiguous tensors."""
    dx = torch.empty_like(grad)
    flat_grad, flat_dx = grad.reshape(-1), dx.view(-1)
    flat_y = None if y is None else y.reshape(-1)
    for piece in pieces(grad.numel()):
        wide = widened(flat_grad[piece])
        part = None if flat_y is None else flat_y[piece]
        flat_dx[piece] = wide * _derivative(spec, part, saved, params, piece, wide.dtype)
    return dx


def _derivative(
    spec: KernelSpec, y: Tensor | None, saved: Tensor, params: Sequence[float], piece: slice, wide: torch.dtype
) -> Tensor:
    """f'(x) of a piece, from the output there and what was saved of all."""
    packed = saved[:, bytes_of(piece)] if spec.stored_bits else saved
    count = piece.stop - piece.start
    bit: Tensor | None = None
    match spec.storage.name, y:
        case "derivative", _:
            return saved.view(-1)[piece].to(wide)
        case "codes" | "table_codes", _:
            levels = torch.tensor(table_of(spec).levels, dtype=wide, device=saved.device)
            return levels.index_select(0, unpack(packed, count).int())
        case "signed_output", _:
            output = saved.view(-1)[piece]
            values, bit = widened(output).abs() + spec.function.minimum, ~torch.signbit(output)
        case "branch_bit", Tensor() as output:
            values, bit = widened(output), unpack(packed, count).bool()
        case "marked_output", Tensor() as output:
            values, bit = widened(output), (output.view(INTEGERS[output.dtype]) & 1) == 0
        case _, Tensor() as output:
            values = widened(output)
        case _:
            raise RuntimeError(f"{spec.key} needs y")
    return derivative_from_output(spec, output.dtype, values, bit, params)


def derivative_from_output(
    spec: KernelSpec, dtype: torch.dtype, y: Tensor, branch_bit: Tensor | None, params: Sequence[float]
) -> Tensor:
    """The emitted f' for a dtype of the output; float64 has float32's."""
    name = "float32" if dtype == torch.float64 else dtype_name(dtype)
    derivative = getattr(torch_elements(spec.function.name), f"derivative_from_output_{name}")
    result: Tensor = derivative(y, params) if branch_bit is None else derivative(y, branch_bit, params)
    return result


def gated(function: str, a: Tensor, b: Tensor) -> Tensor:
    """h = f(a) * b, of contiguous tensors."""
    h, elements = torch.empty_like(a), torch_elements(function)
    flat_a, flat_b, flat_h = a.view(-1), b.view(-1), h.view(-1)
    for piece in pieces(a.numel()):
        flat_h[piece] = elements.forward(widened(flat_a[piece]), ()) * widened(flat_b[piece])
    return h


def gated_backward(function: str, grad: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """grad * b * f'(a) and grad * f(a), of contiguous tensors."""
    da, db, elements = torch.empty_like(a), torch.empty_like(b), torch_elements(function)
    flat_grad, flat_a, flat_b, flat_da, flat_db = (one.view(-1) for one in (grad, a, b, da, db))
    for piece in pieces(a.numel()):
        g, wide = widened(flat_grad[piece]), widened(flat_a[piece])
        flat_da[piece] = g * widened(flat_b[piece]) * elements.derivative(wide, ())
        flat_db[piece] = g * elements.forward(wide, ())
    return da, db


def fused_forward(x: Tensor, key: str, with_derivatives: bool) -> list[Tensor]:
    """The results of an emitted function, and its derivatives where they are asked for, of a contiguous x."""
    found = module_of(key, "torch", "float32")  # the text is the same for all dtypes
    run, times = (found.element, 2) if with_derivatives else (found.values, 1)
    made = [torch.empty_like(x) for _ in range(find(key).count * times)]
    flat_x, flat = x.reshape(-1), [one.view(-1) for one in made]
    for piece in pieces(x.numel()):
        for whole, part in zip(flat, run(widened(flat_x[piece])), strict=True):
            whole[piece] = part
    return made


def fused_backward(grads: Sequence[Tensor], derivatives: Sequence[Tensor]) -> Tensor:
    """The sum of grad * derivative, of contiguous tensors."""
    dx = torch.empty_like(derivatives[0])
    flat_dx = dx.view(-1)
    flat = [(grad.reshape(-1), derivative.view(-1)) for grad, derivative in zip(grads, derivatives, strict=True)]
    for piece in pieces(dx.numel()):
        first, *others = (widened(grad[piece]) * widened(derivative[piece]) for grad, derivative in flat)
        flat_dx[piece] = sum(others, first)
    return dx
