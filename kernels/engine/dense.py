"""Codes of dense tensors in groups of neighbours, called without PyTorch's dispatcher: for graphs that run as they are.

The codes are those of the ops encode_groups and decode_groups, bit for bit. On a GPU a kernel that ran before with
tensors of the same kind is launched again as it is: Triton's own launch looks at each argument anew, some 30
microseconds of the host's time.
"""

from contextlib import nullcontext
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from actfit.kernels.engine import ops
from actfit.kernels.engine.backend import backend, interpreting
from actfit.kernels.engine.codes import LARGEST_HALF
from actfit.kernels.engine.launch import device_of, rows_a_program
from actfit.kernels.engine.launch_codes import EXACT, NARROW, RUNS, run_of
from actfit.kernels.engine.planes import plane_bytes
from actfit.kernels.engine.templates import WARPS
from actfit.kernels.private import is_fake

Codes = tuple[Tensor, Tensor, Tensor]

_runs_triton = cache(lambda device: backend(device) != "torch")
_is_alone = cache(lambda: torch.cuda.device_count() < 2)  # then no other GPU can be the current one


def encode(x: Tensor, noise: Tensor | None, group: int, bits: int) -> Codes:
    """Bit planes, uint8 [bits, bytes], minima and scales, bfloat16 [groups], of a flat contiguous tensor.

    noise: float32 in [0, 1), of the shape of x, for stochastic rounding; None: to the nearest.
    """
    count = x.numel()
    if is_fake(x):  # the dispatcher knows the result
        of_fake: Codes = torch.ops.actfit.encode_groups(x, noise, group, bits)
        return of_fake
    launch = _encoding(count, x.dtype, x.device, group, bits, noise is not None)
    if launch is None:
        return ops.encode_groups(x, noise, group, bits)
    planes = x.new_empty((bits, plane_bytes(count)), dtype=torch.uint8)
    groups = -(-count // group)
    minimum, scale = (x.new_empty(groups, dtype=torch.bfloat16) for _ in range(2))
    launch(x, x if noise is None else noise, minimum, scale, planes)
    return planes, minimum, scale


def decode(planes: Tensor, minimum: Tensor, scale: Tensor, group: int, count: int, dtype: torch.dtype) -> Tensor:
    """The flat tensor of `encode`, `count` elements of the type."""
    if is_fake(planes):
        of_fake: Tensor = torch.ops.actfit.decode_groups(planes, minimum, scale, group, count, dtype)
        return of_fake
    launch = _decoding(count, dtype, planes.device, group, len(planes))
    if launch is None:
        return ops.decode_groups(planes, minimum, scale, group, count, dtype)
    values = planes.new_empty(count, dtype=dtype)
    launch(planes, minimum, scale, values)
    return values


class Launch:
    """The launch of a kernel on so many elements, which differs from call to call in its tensors alone.

    The kernel's arguments are the tensors, the count and the constants, in this order.
    """

    def __init__(self, kernel: Any, programs: int, count: int, **constants: Any) -> None:
        self.kernel, self.grid, self.count, self.constants = kernel, (programs, 1, 1), count, constants
        self.others = (count, *constants.values())
        self.compiled: dict[tuple[bool, ...], Any] = {}  # by which of the tensors begin at a multiple of 16 bytes

    def __call__(self, *tensors: Tensor) -> None:
        aligned = tuple(tensor.data_ptr() % 16 == 0 for tensor in tensors)
        with nullcontext() if _is_alone() else device_of(tensors[0]):
            compiled = self.compiled.get(aligned)
            if compiled is not None:
                compiled[self.grid](*tensors, *self.others)
                return
            compiled = self.kernel[self.grid](*tensors, self.count, **self.constants, num_warps=WARPS, **EXACT)
            if not interpreting():
                self.compiled[aligned] = compiled


@cache
def _kernels() -> ModuleType:
    from actfit.kernels.engine.templates import groups  # at the first call: Triton need not be installed

    return groups


@cache
def _encoding(
    count: int, dtype: torch.dtype, device: torch.device, group: int, bits: int, noise: bool
) -> Launch | None:
    """None where one kernel does not encode: float64, groups that are no power of 2, devices without Triton."""
    run = run_of(dtype)
    suits = dtype != torch.float64 and group & (group - 1) == 0 and run <= group <= run * RUNS
    if not (count and suits and _runs_triton(device)):
        return None
    runs = max(rows_a_program(count, run, RUNS), group // run)
    return Launch(
        _kernels().encode_groups_kernel, -(-count // (run * runs)), count,
        NOISE=noise, WHOLE=count % run == 0, BITS=bits, GROUP=group, RUN=run, RUNS=runs,
    )  # fmt: skip


@cache
def _decoding(count: int, dtype: torch.dtype, device: torch.device, group: int, bits: int) -> Launch | None:
    if not (count and dtype != torch.float64 and group % 8 == 0 and _runs_triton(device)):
        return None
    rows, largest = rows_a_program(count), LARGEST_HALF if dtype == torch.float16 else 0
    return Launch(
        _kernels().decode_groups_kernel, -(-count // (8 * rows)), count,
        BITS=bits, GROUP=group, LARGEST=largest, WIDE=count > NARROW, ROWS=rows,
    )  # fmt: skip
