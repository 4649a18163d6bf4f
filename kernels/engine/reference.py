"""The element-wise ops in plain PyTorch, on any device: what CPU tensors run, and the reference of the Triton kernels.

A tensor is computed piece by piece, so that intermediate results take a few megabytes.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from actfit.kernels.engine.elements import INTEGERS, allocate, computed, table_of, torch_elements, widened
from actfit.kernels.engine.emitted import emitted_function, module_of
from actfit.kernels.engine.from_output import MAX_CACHED_TABLES, border_of, stored_derivative
from actfit.kernels.engine.host import all_values, holds, index_of, loops, on_host, pack, unpack, where
from actfit.kernels.engine.pieces import bytes_of, pieces
from actfit.kernels.methods.method import KernelSpec, spec_of
from actfit.kernels.stock import STOCK

MOST_BORDERS = 64  # with more, a binary search is faster than one comparison for each


def _f(function: str, x: Tensor, params: Sequence[float]) -> Tensor:
    """f(x) by PyTorch's own function, with the limit where that gives NaN at an infinity.

    The emitted forward, which checks for infinities, takes eight times as long: it runs only if there is a NaN.
    """
    if function in STOCK and on_host(x):  # the check would make the CPU wait for a GPU
        y: Tensor = STOCK[function](x, *params)
        if not torch.isnan(y.sum()):
            return y
    y = torch_elements(function).forward(x, params)
    return y


def _values(spec: KernelSpec, x: Tensor, params: Sequence[float]) -> Tensor:
    """f(x) of the whole x with its strides: PyTorch's vector and scalar code, and oneDNN's, differ in the last bits.
    In 16 bits, where PyTorch's function rounds more than once, f(x) is computed in float32, contiguous."""
    if spec.function.rounds_once or x.dtype == computed(x.dtype):
        return _f(spec.function.name, x, params).to(x.dtype)  # autocast lets some functions give float32
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    flat_x, flat_y = x.reshape(-1), y.view(-1)
    for piece in pieces(x.numel()):
        flat_y[piece] = _elementwise_cached("f", spec, flat_x[piece], params)
    return y


def _elementwise_cached(what: str, spec: KernelSpec, x: Tensor, params: Sequence[float]) -> Tensor:
    """A function of _ELEMENT_FUNCTIONS at flat x, in the type that it is computed in. On a CPU in 16 bits it is read
    from a table, which is faster and bit for bit the same."""
    if x.itemsize == 2 and on_host(x):
        return _table_of_all(what, spec.key, x.dtype, tuple(params)).index_select(0, index_of(x))
    return _ELEMENT_FUNCTIONS[what](spec, widened(x), params)


@lru_cache(MAX_CACHED_TABLES)
def _table_of_all(what: str, kernel: str, dtype: torch.dtype, params: tuple[float, ...]) -> Tensor:
    return _ELEMENT_FUNCTIONS[what](spec_of(kernel), widened(all_values(dtype)), params)


def _signed(spec: KernelSpec, x: Tensor, params: Sequence[float]) -> Tensor:
    """±(f(x) - min f), from f(x) before it is rounded to y: near the minimum the difference has more digits than y."""
    above = (_f(spec.function.name, x, params) - spec.function.minimum).clamp(min=0)
    return where(_on_right(spec, x, params), above, -above)


def _on_right(spec: KernelSpec, x: Tensor, params: Sequence[float]) -> Tensor:
    return holds(torch_elements(spec.function.name).branch_bit, x, params)


# Of flat x in the type that it is computed in.
_ELEMENT_FUNCTIONS: dict[str, Callable[[KernelSpec, Tensor, Sequence[float]], Tensor]] = {
    "f": lambda spec, x, params: _f(spec.function.name, x, params),
    "derivative": lambda spec, x, params: torch_elements(spec.function.name).derivative(x, params),
    "signed_output": _signed,
    "codes": lambda spec, x, _: unpack(_searched(spec, x), len(x)),
}


def forward(spec: KernelSpec, x: Tensor, params: Sequence[float], order: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """y = f(x) and what is saved, for x of any strides; both are contiguous, the dimensions of y in `order`."""
    y = _values(spec, x, params)
    x, y = (tensor.permute(*order) if order else tensor for tensor in (x, y))
    y = y.contiguous()
    saved = allocate(spec, y)
    flat_x, flat_y = x.reshape(-1), y.view(-1)
    for piece in pieces(x.numel()):
        part = flat_x[piece].detach()
        match spec.storage.name:
            case "derivative" | "signed_output" as what:
                saved.view(-1)[piece] = _elementwise_cached(what, spec, part, params)
            case "branch_bit":
                saved[:, bytes_of(piece)] = pack(_on_right(spec, widened(part), params), 1)
            case "branch_and_rounding":
                saved[:, bytes_of(piece)] = pack(_branch_and_rounding(spec, part, flat_y[piece], params), 2)
            case "codes" | "table_codes":
                saved[:, bytes_of(piece)] = _codes(spec, part)
            case "marked_output":
                flat_y[piece] += 0.0  # -0 becomes 0: with its lowest bit set it would lie below all of f
                bits = flat_y[piece].view(INTEGERS[x.dtype])
                bits.bitwise_or_(1).sub_(_on_right(spec, widened(part), params).to(bits.dtype))
    return y, saved


def _branch_and_rounding(spec: KernelSpec, x: Tensor, y: Tensor, params: Sequence[float]) -> Tensor:
    """The branch of x in bit 0, and in bit 1 whether f(x) was rounded away from zero to y; see `border_of`."""
    away = _elementwise_cached("f", spec, x, params).abs() < border_of(spec, widened(y), y.dtype).abs()
    return _on_right(spec, widened(x), params).byte() | away.byte() << 1


def _codes(spec: KernelSpec, x: Tensor) -> Tensor:
    """The packed codes of a piece."""
    if x.itemsize == 2 and on_host(x):
        return pack(_elementwise_cached("codes", spec, x, ()), spec.stored_bits)
    return _searched(spec, widened(x))


def _searched(spec: KernelSpec, x: Tensor) -> Tensor:
    table = table_of(spec)
    borders = table.borders if x.dtype == torch.float64 else table.float32_borders
    compiled = loops() if on_host(x) and len(borders) <= MOST_BORDERS else None
    if compiled is not None:
        planes: Tensor = compiled.table_codes(x, borders, table.codes, table.bits)
        return planes
    codes = x.new_tensor(table.codes, dtype=torch.uint8)
    # NaN has the first code, as by comparisons.
    numbers = x.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    places = torch.bucketize(numbers, x.new_tensor(borders), out_int32=True)
    return pack(codes.index_select(0, places), spec.stored_bits)


def backward(spec: KernelSpec, grad: Tensor, y: Tensor | None, saved: Tensor, params: Sequence[float]) -> Tensor:
    """dx = grad * f'(x), of contiguous tensors."""
    dx = torch.empty_like(grad)
    flat_grad, flat_dx = grad.detach().reshape(-1), dx.view(-1)
    flat_y = None if y is None else y.detach().reshape(-1)
    for piece in pieces(grad.numel()):
        part = None if flat_y is None else flat_y[piece]
        derivative = _derivative(spec, part, saved, params, piece, computed(grad.dtype))
        if dx.dtype == derivative.dtype:
            torch.mul(flat_grad[piece], derivative, out=flat_dx[piece])
        else:  # in place: touching new memory costs more than a product
            flat_dx[piece] = widened(flat_grad[piece]).mul_(derivative)
    return dx


def _derivative(
    spec: KernelSpec, y: Tensor | None, saved: Tensor, params: Sequence[float], piece: slice, compute_dtype: torch.dtype
) -> Tensor:
    """f'(x) of a piece, from the output of the piece and what was saved of the whole tensor."""
    packed = saved[:, bytes_of(piece)] if spec.stored_bits else saved
    match spec.storage.name, y:
        case "derivative", _:
            return saved.view(-1)[piece].to(compute_dtype)
        case "codes" | "table_codes", _:
            return _levels(spec.key, compute_dtype, saved.device, packed)[: piece.stop - piece.start]
        case "signed_output", _:
            return stored_derivative(spec, saved.view(-1)[piece], None, params)
        case "branch_bit" | "branch_and_rounding", Tensor() as output:
            return stored_derivative(spec, output, unpack(packed, len(output)), params)
        case _, Tensor() as output:
            return stored_derivative(spec, output, None, params)
    raise RuntimeError(f"{spec.key} needs y")


def levels(spec: KernelSpec, saved: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """The levels of the packed codes: `count` numbers of the dtype, flat."""
    values = saved.new_empty(count, dtype=dtype)
    for piece in pieces(count):
        packed = saved[:, bytes_of(piece)]
        values[piece] = _levels(spec.key, computed(dtype), saved.device, packed)[: piece.stop - piece.start]
    return values


def _levels(kernel: str, compute_dtype: torch.dtype, device: torch.device, packed: Tensor) -> Tensor:
    """The levels of all codes in whole bytes. Two are looked up at once, as a complex number."""
    neighbours = unpack(packed, 8 * packed.shape[1]).view(torch.uint16).to(torch.int32)
    pairs = _pairs(kernel, compute_dtype, device).index_select(0, neighbours)
    return torch.view_as_real(pairs).view(-1)


@lru_cache(MAX_CACHED_TABLES)
def _pairs(kernel: str, compute_dtype: torch.dtype, device: torch.device) -> Tensor:
    """The levels of number % 256 and number // 256 for each number; arbitrary ones where these are no codes."""
    spec = spec_of(kernel)
    levels = torch.tensor(table_of(spec).levels, dtype=compute_dtype, device=device)
    first, second = (
        torch.cat([levels, levels[-1:].expand(size - len(levels))]) for size in (256, 1 << spec.stored_bits)
    )
    return torch.complex(first.repeat(len(second)), second.repeat_interleave(256))


def gated(function: str, a: Tensor, b: Tensor) -> Tensor:
    """h = f(a) * b, of contiguous tensors."""
    h = torch.empty_like(a)
    flat_a, flat_b, flat_h = a.view(-1), b.view(-1), h.view(-1)
    for piece in pieces(a.numel()):
        flat_h[piece] = _f(function, widened(flat_a[piece]), ()) * widened(flat_b[piece])
    return h


def gated_backward(function: str, grad: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """grad * b * f'(a) and grad * f(a), of contiguous tensors."""
    da, db, elements = torch.empty_like(a), torch.empty_like(b), torch_elements(function)
    flat_grad, flat_a, flat_b, flat_da, flat_db = (tensor.view(-1) for tensor in (grad, a, b, da, db))
    for piece in pieces(a.numel()):
        g, x = widened(flat_grad[piece]), widened(flat_a[piece])
        flat_da[piece] = g * widened(flat_b[piece]) * elements.derivative(x, ())
        flat_db[piece] = g * _f(function, x, ())
    return da, db


def fused_forward(x: Tensor, key: str, with_derivatives: bool) -> list[Tensor]:
    """The results of an emitted function, and its derivatives if they are asked for, for a contiguous x."""
    module = module_of(key, "torch", "float32")  # the text is the same for all dtypes
    element, times = (module.element, 2) if with_derivatives else (module.values, 1)
    made = [torch.empty_like(x) for _ in range(emitted_function(key).count * times)]
    flat_x, flat = x.reshape(-1), [result.view(-1) for result in made]
    for piece in pieces(x.numel()):
        for whole, part in zip(flat, element(widened(flat_x[piece])), strict=True):
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
