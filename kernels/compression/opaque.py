"""Codes of groups of neighbours on a GPU, by our own kernels: Inductor neither looks into them nor fuses them.

Inductor's Triton computes addresses, and loads a minimum and a step, for each element; our kernels do so for eight at a
time. They are those of `actfit.compress`.
"""

from math import prod

import torch
from torch import Tensor, fx

import actfit.kernels.engine.ops  # noqa: F401 - registers the ops
from actfit.kernels.compression.layout import GroupLayout
from actfit.kernels.engine.elements import computed

DECODE = torch.ops.actfit.decode_groups.default
DEVICE = "cuda"


def suits(value: Tensor, layout: GroupLayout) -> bool:
    """Whether our kernels encode the tensor: on a GPU, in groups that fill each row if the number of rows changes."""
    is_filled = layout.static == value.dim() or not layout.filler
    return value.device.type == DEVICE and computed(value.dtype) == torch.float32 and is_filled


def encode(x: Tensor, layout: GroupLayout, bits: int, noise: Tensor | None) -> list[Tensor]:
    """Minima and steps, bfloat16 [*lead, groups], and bit planes, uint8 [bits, *lead, bytes].

    `lead` are the dimensions whose sizes change. noise: uniform in [0, 1), of the shape of x, for stochastic rounding.
    """
    rows = layout.rows(x)
    flat, lead = rows.flatten(), rows.shape[:-1]
    flat_noise = None if noise is None else layout.rows(noise).flatten()
    planes, *ends = torch.ops.actfit.encode_groups(flat, flat_noise, layout.group, bits)
    return [*(end.view(*lead, -1) for end in ends), planes.view(bits, *lead, -1)]


def decode(
    minimum: Tensor, step: Tensor, planes: Tensor, layout: GroupLayout, sizes: list[int], dtype: torch.dtype
) -> Tensor:
    """The tensor of `encode`; `sizes` are those of the static dimensions, in memory order."""
    lead, row = minimum.shape[:-1], prod(sizes)
    count = prod(lead) * row
    flat = DECODE(planes.flatten(1), minimum.flatten(), step.flatten(), layout.group, count, dtype, [])
    return layout.of_rows(flat.view(*lead, row), sizes)


def wait_for(decoded: fx.Node, product: fx.Node) -> None:
    """Make decoding, of which `decoded` is a view, run after a product."""
    node = decoded
    while node.target is not DECODE:
        node = node.args[0]  # of a view; sizes that change are inputs, too
    node.args = (*node.args[:-1], [product])
