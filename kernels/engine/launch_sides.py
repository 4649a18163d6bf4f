"""Run the Triton kernels of `kernels.engine.templates.sides` on contiguous tensors of 16 or 32 bits."""

import torch
from torch import Tensor

from kernels.engine.backend import interpreting
from kernels.engine.launch import device_of, rows_a_program
from kernels.engine.launch_codes import EXACT, NARROW, places
from kernels.engine.planes import plane_bytes
from kernels.engine.templates import ROWS, WARPS

LARGEST = 1024  # elements of a group: more would not fit into the registers of a program


def encode_sides(x: Tensor, inside: Tensor, group_size: int, bits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`kernels.engine.reference_sides.encode_sides`, on a GPU, or on the CPU under the interpreter."""
    from kernels.engine.templates import sides  # at the first call: Triton need not be installed

    count, groups = x.numel(), -(-x.numel() // group_size)
    planes = x.new_empty((bits, plane_bytes(count)), dtype=torch.uint8)
    minimum, scale = (x.new_empty(groups, dtype=torch.bfloat16) for _ in range(2))
    inverse, edge = x.new_empty(groups, dtype=torch.float32), x.new_empty(groups, dtype=torch.uint8)
    if not count:
        return planes, minimum, scale, edge
    given = x, inside.view(torch.uint8), minimum, scale, inverse, edge
    width, rows = 1 << (group_size - 1).bit_length(), rows_a_program(count)
    many = max((8 * rows if interpreting() else 8 * ROWS) // width, 1)
    place, size = places(minimum, group_size, count=count, tokens=count)
    place = "row" if groups == 1 else place  # which is of any size then, and has an entry for each row
    with device_of(x):
        sides.side_grids_kernel[(-(-groups // many),)](
            *given, group_size, groups, count, LEVELS=1 << bits, GROUPS=many, WIDTH=width, num_warps=WARPS, **EXACT
        )
        sides.side_codes_kernel[(-(-count // (8 * rows)),)](
            *given, planes, size, groups, count,
            PLACES=place, BITS=bits, WIDE=count > NARROW, ROWS=rows, num_warps=WARPS, **EXACT
        )  # fmt: skip
    return planes, minimum, scale, edge
