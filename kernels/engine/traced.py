"""The ops forward and backward as plain operations, which torch.compile traces and fuses with their neighbours.

They save what the ops save, in another order of bits: byte j of a plane holds elements j, j + n/8, … j + 7n/8, so that
neighbours in memory go into neighbouring bytes. No compiler vectorises the order of the ops, eight neighbours a byte.
The order may differ, as planes never leave the graph that makes them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from actfit.kernels.engine.cells import cells_of, entries
from actfit.kernels.engine.elements import INTEGERS, computed, table_of, torch_elements, widened
from actfit.kernels.engine.from_output import border_of, derivative_from_output, finer
from actfit.kernels.engine.traced_planes import (
    EIGHT,
    ONES,
    WORD_PLANES,
    four_bits,
    is_set,
    joined,
    planes_of,
    split,
    word_of,
)
from actfit.kernels.methods.method import KernelSpec, spec_of
from actfit.kernels.methods.storage import (
    BRANCH_AND_ROUNDING,
    BRANCH_BIT,
    CODES,
    DERIVATIVE,
    MARKED_OUTPUT,
    OUTPUT,
    SIGNED_OUTPUT,
    TABLE_CODES,
)

_COPIES = 0x00204081  # times this: four copies of four bits, 7 bits apart, so bit p is at 8p
_STORAGES = (DERIVATIVE, OUTPUT, SIGNED_OUTPUT, BRANCH_BIT, CODES, TABLE_CODES)
_STORAGES_WITH_BITS = (BRANCH_AND_ROUNDING, MARKED_OUTPUT)  # which read the bits of numbers


def traceable(kernel: str, dtype: torch.dtype) -> bool:
    """Whether a kernel can be traced for a dtype: its codes can be looked up, and it reads no bits of float16, as
    Inductor's C++ has no vectors of 16-bit integers; those of bfloat16 are read in float32."""
    spec = spec_of(kernel)
    if spec.stored_bits > WORD_PLANES and cells_of(spec, dtype) is None:
        return False
    return spec.storage in _STORAGES or (spec.storage in _STORAGES_WITH_BITS and dtype != torch.float16)


def forward(x: Tensor, kernel: str, params: Sequence[float], order: Sequence[int]) -> tuple[Tensor, Tensor]:
    """As the op: y = f(x) and what is saved, for x of any strides; y is contiguous, its dimensions in `order`."""
    spec = spec_of(kernel)
    elements, y = torch_elements(spec.function.name), _values(spec, x, params)
    x, y = (tensor.permute(*order).contiguous() if order else tensor.contiguous() for tensor in (x, y))
    match spec.storage.name:
        case "derivative":
            return y, elements.derivative(widened(x), params).to(x.dtype)
        case "branch_bit":
            return y, planes_of(elements.branch_bit(widened(split(x)), params).to(torch.int32), 1)
        case "codes" | "table_codes":
            return y, _code_planes(spec, widened(split(x)))
        case "branch_and_rounding":
            return y, planes_of(_branch_and_rounding(spec, split(x), split(y), params), 2)
        case "marked_output":
            y = _marked(y, elements.branch_bit(widened(x), params))
        case "signed_output":
            above = (elements.forward(widened(x), params) - spec.function.minimum).clamp(min=0)
            return y, torch.where(elements.branch_bit(widened(x), params), above, -above).to(x.dtype)
    return y, x.new_empty(0, dtype=torch.uint8)


def backward(grad: Tensor, y: Tensor | None, saved: Tensor, kernel: str, params: Sequence[float]) -> Tensor:
    """As the op: grad * f'(x), for contiguous tensors."""
    spec = spec_of(kernel)
    match spec.storage.name, y:
        case "derivative", _:
            return _product(grad, widened(saved))
        case "codes" | "table_codes", _:
            return _times_levels(spec, grad, saved)
        case "signed_output", _:
            values, bit = widened(saved).abs() + spec.function.minimum, ~torch.signbit(saved)
            return _product(grad, derivative_from_output(spec, saved.dtype, values, bit, params))
        case "branch_bit" | "branch_and_rounding" as name, Tensor():
            output, word = split(y), word_of(saved)
            values = widened(output)
            if name == "branch_and_rounding":
                values = finer(spec, _bits(output).view(torch.float32), is_set(word, 1), y.dtype)
            derivative = derivative_from_output(spec, y.dtype, values, is_set(word, 0), params)
            return joined(_product(split(grad), derivative), grad)
        case "marked_output", Tensor():
            # Of y itself Inductor takes the integers that forward made it of, and saves them, too.
            bit = (_bits(y.abs()) & _lowest_bit(y.dtype)) == 0
            return _product(grad, derivative_from_output(spec, y.dtype, widened(y), bit, params))
        case _, Tensor():
            return _product(grad, derivative_from_output(spec, y.dtype, widened(y), None, params))
    raise RuntimeError(f"{spec.key} needs y")


def levels(saved: Tensor, kernel: str, like: Tensor) -> Tensor:
    """The levels of the codes of a tensor that has the shape and dtype of `like`, which is not read."""
    return _times_levels(spec_of(kernel), torch.ones_like(like), saved)


def gated(a: Tensor, b: Tensor, function: str) -> Tensor:
    """As the op: f(a) * b."""
    return _product(b, torch_elements(function).forward(widened(a), ()))


def gated_backward(grad: Tensor, a: Tensor, b: Tensor, function: str) -> tuple[Tensor, Tensor]:
    """As the op: grad * b * f'(a) and grad * f(a)."""
    elements, x = torch_elements(function), widened(a)
    da = (widened(grad) * widened(b) * elements.derivative(x, ())).to(a.dtype)
    return da, _product(grad, elements.forward(x, ()))


def _values(spec: KernelSpec, x: Tensor, params: Sequence[float]) -> Tensor:
    """f(x), rounded once."""
    given = x if spec.function.rounds_once else widened(x)
    y: Tensor = torch_elements(spec.function.name).forward(given, params)
    return y.to(x.dtype)  # autocast lets some functions give float32


def _marked(y: Tensor, on_right: Tensor) -> Tensor:
    """y with its lowest bit clear on the right branch, else set; -0 becomes 0 first, as so marked it lies below f."""
    bits, lowest = _bits(y), _lowest_bit(y.dtype)
    bits = bits.masked_fill(bits == torch.iinfo(bits.dtype).min, 0)  # as numbers, C++ does not tell -0 from 0
    marked = (bits | lowest) - on_right.to(bits.dtype) * lowest
    return marked.view(torch.float32).to(y.dtype) if y.dtype == torch.bfloat16 else marked.view(y.dtype)


def _branch_and_rounding(spec: KernelSpec, x: Tensor, y: Tensor, params: Sequence[float]) -> Tensor:
    """int32: the branch of x at bit 0, and at bit 8 whether f(x) was rounded away from zero to y, in bfloat16; see
    `border_of`."""
    elements, wide = torch_elements(spec.function.name), widened(x)
    border = border_of(spec, _bits(y).view(torch.float32), y.dtype)
    away = elements.forward(wide, params).abs() < border.abs()
    return elements.branch_bit(wide, params).to(torch.int32) | (away.to(torch.int32) << EIGHT)


def _bits(y: Tensor) -> Tensor:
    """The bits of numbers; of bfloat16 in float32, rounded here, as Inductor leaves out rounding before widening."""
    if y.dtype != torch.bfloat16:
        return y.view(INTEGERS[y.dtype])
    bits = y.float().view(torch.int32)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000


def _lowest_bit(dtype: torch.dtype) -> int:
    return 1 << 16 if dtype == torch.bfloat16 else 1


def _product(grad: Tensor, derivative: Tensor) -> Tensor:
    return (widened(grad) * derivative).to(grad.dtype)


def _code_planes(spec: KernelSpec, x: Tensor) -> Tensor:
    """The packed codes of numbers [lead, 8, n/8].

    Up to 4 bits by a comparison with each border, which Inductor's C++ vectorises; more by tables, which it reads
    number by number, in a time that does not grow with the borders.
    """
    bits, cells = spec.stored_bits, None
    if bits > WORD_PLANES:
        cells = cells_of(spec, x.dtype)
    if cells is None:
        return planes_of(_spread_codes(spec, x), bits)
    codes = cells.codes_of(x)
    lower, upper = ((four * _COPIES) & ONES for four in (codes & 15, codes >> WORD_PLANES))
    return torch.cat([planes_of(lower, WORD_PLANES), planes_of(upper, bits - WORD_PLANES)])


def _spread_codes(spec: KernelSpec, x: Tensor) -> Tensor:
    """The code of each number in int32, its bit p at 8p; of 4 bits at most."""
    table = table_of(spec)
    borders = table.borders if x.dtype == torch.float64 else table.float32_borders
    words = [sum(((code >> plane) & 1) << EIGHT * plane for plane in range(WORD_PLANES)) for code in table.codes]
    spread = torch.full_like(x, words[0], dtype=torch.int32)
    for border, word in zip(borders, words[1:], strict=True):
        spread = spread.masked_fill(x > border, word)
    return spread


def _times_levels(spec: KernelSpec, grad: Tensor, planes: Tensor) -> Tensor:
    """grad times the level of each code.

    Inductor's C++ reads one byte as slowly as eight: on a CPU all elements of a byte are computed at once. Inductor's
    Triton fuses one expression with its consumers, but not eight.
    """
    eighths, words = split(grad), [word_of(four) for four in planes.split(WORD_PLANES)]
    level = _lookup(spec, computed(grad.dtype), grad.device)
    if grad.device.type == "cpu":
        products = [_product(eighths[:, k], level([word >> k for word in words])) for k in range(EIGHT)]
        return joined(torch.stack(products, 1), grad)
    place = torch.arange(EIGHT, dtype=torch.int32, device=grad.device)
    return joined(_product(eighths, level([word[:, None] >> place[:, None] for word in words])), grad)


def _lookup(spec: KernelSpec, dtype: torch.dtype, device: torch.device) -> Callable[[Sequence[Tensor]], Tensor]:
    """The level of a code whose bit p is at 8p of the first word, and bit 4 + p of the second."""
    levels = [*table_of(spec).levels]
    levels += levels[-1:] * ((1 << spec.stored_bits) - len(levels))
    if spec.stored_bits > WORD_PLANES:
        table = torch.tensor(levels, dtype=dtype, device=device)
        return lambda words: entries(table, four_bits(words[0]) | (four_bits(words[1]) << WORD_PLANES))
    numbers = [torch.full((), level, dtype=dtype, device=device) for level in levels]

    def level(words: Sequence[Tensor]) -> Tensor:
        """By one torch.where for each bit, which vectorises, unlike lookups."""
        values = numbers
        for plane in range(spec.stored_bits):
            is_set = (words[0] & (1 << EIGHT * plane)) != 0
            values = [torch.where(is_set, odd, even) for even, odd in zip(values[::2], values[1::2], strict=True)]
        return values[0]

    return level
