"""f' from what is stored of the output, by the formulas of `kernels.generated`."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from kernels.engine import host
from kernels.engine.elements import INTEGERS, dtype_name, torch_elements, widened
from kernels.engine.host import every, on_host, place
from kernels.methods.method import KernelSpec, spec_of

TABLES = 32  # that are kept of each kind, 512 KiB each at most

# Operations that formulas take, where they use them.
_FASTER: dict[str, Callable[..., Tensor]] = {
    "sqrt": host.sqrt,
    "polynomial": host.polynomial,
    "by_branch": host.by_branch,
}


def stored_derivative(spec: KernelSpec, output: Tensor, bit: Tensor | None, params: Sequence[float]) -> Tensor:
    """f' of a piece from what was stored of the output, and its packed bit; in 16 bits on a CPU by a table."""
    if output.itemsize != 2 or not on_host(output):
        return _computed_from_output(spec, output, bit, params)
    table = _each_from_output(spec.key, output.dtype, tuple(params))
    places = place(output)
    return table.index_select(0, places if bit is None else places.add_(bit, alpha=len(table) // 2))


@lru_cache(TABLES)
def _each_from_output(kernel: str, dtype: torch.dtype, params: tuple[float, ...]) -> Tensor:
    """f' for every output: for those on the left, then for those on the right, if there is a bit that tells it."""
    spec = spec_of(kernel)
    bits = [torch.full((len(every(dtype)),), bit, dtype=torch.uint8, device="cpu") for bit in range(2)]
    kinds = bits if spec.storage.name == "branch_bit" else [None]
    return torch.cat([_computed_from_output(spec, every(dtype), bit, params) for bit in kinds])


def _computed_from_output(spec: KernelSpec, output: Tensor, bit: Tensor | None, params: Sequence[float]) -> Tensor:
    values = widened(output)
    match spec.storage.name:
        case "branch_bit" if bit is not None:
            bit = bit.view(torch.bool)
        case "signed_output":
            values, bit = values.abs() + spec.function.minimum, ~torch.signbit(output)
        case "marked_output":
            bit = (output.view(INTEGERS[output.dtype]) & 1) == 0
    return derivative_from_output(spec, output.dtype, values, bit, params, faster=True)


def derivative_from_output(
    spec: KernelSpec,
    dtype: torch.dtype,
    y: Tensor,
    branch_bit: Tensor | None,
    params: Sequence[float],
    faster: bool = False,
) -> Tensor:
    """The emitted f' for a dtype of the output; float64 has float32's. With `faster` by operations of `host`."""
    name = "float32" if dtype == torch.float64 else dtype_name(dtype)
    derivative = getattr(torch_elements(spec.function.name), f"derivative_from_output_{name}")
    options = {name: _FASTER[name] for name in derivative.__kwdefaults__ or ()} if faster else {}
    bit = () if branch_bit is None else (branch_bit,)
    result: Tensor = derivative(y, *bit, params, **options)
    return result
