"""f' from what is stored of the output, by the formulas of `actfit.kernels.generated`.

On a CPU in 16 bits a table has all of them, and in float32 Numba, where it is, compiles loops for functions of two
branches.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from actfit.kernels.engine import host
from actfit.kernels.engine.elements import INTEGERS, dtype_name, loop_element, torch_elements, widened
from actfit.kernels.engine.host import COUNT_16_BIT, all_values, index_of, on_host
from actfit.kernels.methods.method import KernelSpec, spec_of

MAX_CACHED_TABLES = 32  # of each kind, 1 MiB each at most

# Operations that formulas take as arguments, if they use them; on a CPU faster than torch's.
_HOST_OPERATIONS: dict[str, Callable[..., Tensor]] = {"sqrt": host.sqrt, "polynomial": host.polynomial}


def stored_derivative(spec: KernelSpec, output: Tensor, code: Tensor | None, params: Sequence[float]) -> Tensor:
    """f' of a piece from the stored output and the code beside it; in 16 bits on a CPU by a table."""
    if output.itemsize != 2 or not on_host(output):
        return _computed_from_output(spec, output, code, params)
    table = _each_from_output(spec.key, output.dtype, tuple(params))
    places = index_of(output)
    return table.index_select(0, places if code is None else places.add_(code, alpha=COUNT_16_BIT))


@lru_cache(MAX_CACHED_TABLES)
def _each_from_output(kernel: str, dtype: torch.dtype, params: tuple[float, ...]) -> Tensor:
    """f' for every output, with each code that may be stored beside it."""
    spec = spec_of(kernel)
    codes = [
        torch.full((COUNT_16_BIT,), code, dtype=torch.uint8, device="cpu") for code in range(1 << spec.stored_bits)
    ]
    kinds = codes if spec.stored_bits else [None]
    return torch.cat([_computed_from_output(spec, all_values(dtype), code, params) for code in kinds])


def _computed_from_output(spec: KernelSpec, output: Tensor, code: Tensor | None, params: Sequence[float]) -> Tensor:
    values, bit = widened(output), None
    match spec.storage.name:
        case "branch_bit" if code is not None:
            bit = code.view(torch.bool)
        case "branch_and_rounding" if code is not None:
            values, bit = finer(spec, values, code >= 2, output.dtype), (code & 1).bool()
        case "signed_output":
            values, bit = values.abs() + spec.function.minimum, ~torch.signbit(output)
        case "marked_output":
            bit = (output.view(INTEGERS[output.dtype]) & 1) == 0
    if bit is not None and output.dtype == torch.float32 and on_host(output):
        derivative = _by_loop(spec.function.name, values, bit)
        if derivative is not None:
            return derivative
    return derivative_from_output(spec, output.dtype, values, bit, params, faster=True)


def _by_loop(function: str, y: Tensor, on_right: Tensor) -> Tensor | None:
    """f' of flat outputs by the emitted loop of a function; None where it has none, or without Numba."""
    loops = host.loops()
    if loops is None or (loop := loop_element(function)) is None:
        return None
    result = torch.empty_like(y)
    arrays = [tensor.detach().numpy() for tensor in (y, on_right, result)]
    loops.in_threads(len(y), 8, lambda start, stop: loop(*(array[start:stop] for array in arrays)))
    return result


def border_of(spec: KernelSpec, y: Tensor, dtype: torch.dtype) -> Tensor:
    """Where the numbers that are rounded to y, of 16 bits of `dtype`, are cut in two: at y, but for one y. Both are
    given in float32."""
    cut = spec.function.cuts.get(dtype_name(dtype))
    return y if cut is None else y.masked_fill(y == cut.output, cut.border)


def finer(spec: KernelSpec, y: Tensor, away: Tensor, dtype: torch.dtype) -> Tensor:
    """The midpoint of the numbers that are rounded to y, of 16 bits of `dtype`, from one side: y, given in float32,
    moved by a quarter of its spacing, towards zero where f(x) was rounded away from zero, else away from zero; for one
    output that is cut elsewhere, as its `CutOutput` says."""
    share = torch.finfo(dtype).eps / 4
    power = (y.view(torch.int32) & -0x800000).view(torch.float32)  # sign and exponent
    moved = y + power * torch.where(away, -share, share)
    cut = spec.function.cuts.get(dtype_name(dtype))
    return moved if cut is None else torch.where(y == cut.output, torch.where(away, cut.inner, cut.outer), moved)


def derivative_from_output(
    spec: KernelSpec,
    dtype: torch.dtype,
    y: Tensor,
    branch_bit: Tensor | None,
    params: Sequence[float],
    faster: bool = False,
) -> Tensor:
    """The emitted f' for a dtype of the output; float64 uses float32's. `faster`: by operations of `host`."""
    name = "float32" if dtype == torch.float64 else dtype_name(dtype)
    element = spec.method.elements(spec.function).decode
    derivative = getattr(torch_elements(spec.function.name), f"{element}_{name}")
    options = {name: _HOST_OPERATIONS[name] for name in derivative.__kwdefaults__ or ()} if faster else {}
    bit = () if branch_bit is None else (branch_bit,)
    result: Tensor = derivative(y, *bit, params, **options)
    return result
