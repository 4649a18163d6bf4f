"""Codes of dense tensors in groups of neighbours, called without PyTorch's dispatcher: for graphs that run as they are.

The codes are those of the ops encode_groups and decode_groups, bit for bit. On a GPU a kernel that ran before with
tensors of the same kind is launched again as it is: Triton's own launch looks at each argument anew, some 30
microseconds of the host's time.
"""

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kernels.engine import ops
from kernels.engine.backend import backend, interpreting
from kernels.engine.codes import LARGEST_HALF
from kernels.engine.launch import device_of, rows_a_program
from kernels.engine.launch_codes import EXACT, NARROW, RUNS, run_of
from kernels.engine.planes import plane_bytes
from kernels.engine.templates import WARPS

_launched: dict[tuple[Any, ...], Any] = {}  # compiled kernels by all that they were compiled for

Codes = tuple[Tensor, Tensor, Tensor]


@cache
def _kernels() -> ModuleType:
    from kernels.engine.templates import groups  # at the first call: Triton need not be installed

    return groups


_backend = cache(backend)


def _runs_triton(x: Tensor, dtype: torch.dtype) -> bool:
    return dtype != torch.float64 and _backend(x.device) != "torch"


def encode(x: Tensor, noise: Tensor | None, group: int, bits: int) -> Codes:
    """Bit planes, uint8 [bits, bytes], minima and scales, bfloat16 [groups], of a flat contiguous tensor."""
    run = run_of(x.dtype)
    suits = group & (group - 1) == 0 and run <= group <= run * RUNS
    if not (x.numel() and suits and _runs_triton(x, x.dtype)):
        codes: Codes = ops.encode_groups(x, noise, group, 1, x.numel(), bits)
        return codes
    count = x.numel()
    planes = x.new_empty((bits, plane_bytes(count)), dtype=torch.uint8)
    minimum, scale = (x.new_empty(-(-count // group), dtype=torch.bfloat16) for _ in range(2))
    runs = max(rows_a_program(count, run, RUNS), group // run)
    constants = {
        "NOISE": noise is not None, "WHOLE": count % run == 0,
        "BITS": bits, "GROUP": group, "RUN": run, "RUNS": runs,
    }  # fmt: skip
    tensors = [x, x if noise is None else noise, minimum, scale, planes]
    _launch(_kernels().encode_groups_kernel, -(-count // (run * runs)), tensors, count, constants)
    return planes, minimum, scale


def decode(planes: Tensor, minimum: Tensor, scale: Tensor, group: int, count: int, dtype: torch.dtype) -> Tensor:
    """The flat tensor of `encode`, `count` elements of the type."""
    if not (count and _runs_triton(planes, dtype)):
        values: Tensor = ops.decode_groups(planes, minimum, scale, group, count, dtype, ())
        return values
    values = planes.new_empty(count, dtype=dtype)
    rows = rows_a_program(count)
    constants = {
        "BITS": len(planes), "GROUP": group, "LARGEST": LARGEST_HALF if dtype == torch.float16 else 0,
        "WIDE": count > NARROW, "ROWS": rows,
    }  # fmt: skip
    tensors = [planes, minimum, scale, values]
    _launch(_kernels().decode_groups_kernel, -(-count // (8 * rows)), tensors, count, constants)
    return values


def _launch(kernel: Any, programs: int, tensors: Sequence[Tensor], count: int, constants: dict[str, Any]) -> None:
    """Launch a kernel whose arguments are the tensors, the count and the constants, in this order."""
    first = tensors[0]
    aligned = tuple(tensor.data_ptr() % 16 == 0 for tensor in tensors)
    key = (kernel, first.device, count, aligned, *(tensor.dtype for tensor in tensors), *constants.values())
    with device_of(first):
        compiled = _launched.get(key)
        if compiled is not None:
            compiled[(programs, 1, 1)](*tensors, count, *constants.values())
            return
        compiled = kernel[(programs,)](*tensors, count, **constants, num_warps=WARPS, **EXACT)
        if compiled is not None and not interpreting():
            _launched[key] = compiled
