"""The ops of `kernels.approx_backprop.ops` in plain PyTorch: what CPU tensors run, and the measure of the kernels.

Vectors belong to channels or groups: element i of a flat tensor takes entry (i // inner) % len(vector) of them. They
have any floating-point type; all is computed in float32, or in float64 for float64.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.packing import pack, unpack


def computed(dtype: torch.dtype) -> torch.dtype:
    """The type that tensors of a dtype are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _rows(flat: Tensor, vector: Tensor, inner: int) -> Tensor:
    """[outer, len(vector), inner], filled up with zeros; `vector[:, None]` goes along it."""
    missing = -flat.numel() % (len(vector) * inner)
    return (F.pad(flat, (0, missing)) if missing else flat).view(-1, len(vector), inner)


def ends(x: Tensor, group: int, bits: int) -> tuple[Tensor, Tensor]:
    """The least of each group, rounded down to bfloat16, and the step from code to code, rounded up: bfloat16 each.

    So 2^bits codes from the least on, a step apart, reach over the whole group.
    """
    flat = x.reshape(-1).float()
    count = flat.numel() // group * group
    low, high = torch.aminmax(flat[:count].view(-1, group), dim=1)
    if count < flat.numel():
        last_low, last_high = torch.aminmax(flat[count:])
        low, high = torch.cat([low, last_low[None]]), torch.cat([high, last_high[None]])
    least = -_up(-low)
    step = _up((high - least) / ((1 << bits) - 1))
    return least.bfloat16(), step.bfloat16()


def _up(values: Tensor) -> Tensor:
    """The next number of bfloat16, or the same; it keeps the upper half of a float32's bits."""
    bits = values.view(torch.int32)
    return torch.where(values > 0, (bits + 0xFFFF) & ~0xFFFF, bits & ~0xFFFF).view(torch.float32)


def encode(
    x: Tensor, center: Tensor, scale: Tensor, offset: Tensor, noise: Tensor | None, inner: int, bits: int
) -> Tensor:
    """Bit planes of floor((x - center) * scale + noise) + offset, not below 0 and below 2**bits; NaN has code 0.

    noise: from [0, 1) and as many as x has, or one for all, or none.
    """
    flat = x.reshape(-1).to(computed(x.dtype))
    center, scale, offset = (one.to(flat.dtype) for one in (center, scale, offset))
    places = (_rows(flat, center, inner) - center[:, None]).mul_(scale[:, None])
    if noise is not None:
        places += noise if noise.numel() == 1 else _rows(noise.reshape(-1), center, inner)
    codes = places.floor_().add_(offset[:, None]).nan_to_num_(0.0).clamp_(0, (1 << bits) - 1)
    return pack(codes.view(-1)[: flat.numel()].to(torch.uint8), bits)


def decode(
    planes: Tensor,
    step: Tensor,
    base: Tensor,
    run: int,
    gain: Tensor | None,
    bias: Tensor | None,
    inner: int,
    signs: Tensor | None,
    slope: float,
    count: int,
    dtype: torch.dtype,
) -> Tensor:
    """Flat values (code * step + base) * gain + bias.

    step and base belong to groups of `run` elements, gain and bias to channels of `inner`. signs: one plane, set where
    the value is known to be above 0; there it is not below, and elsewhere it is not above, and times `slope`.
    """
    values = unpack(planes, count).to(computed(dtype))
    values = _rows(values, step, run).mul_(step.to(values.dtype)[:, None]).add_(base.to(values.dtype)[:, None])
    values = values.view(-1)[:count]
    if gain is not None:
        values = _rows(values, gain, inner).mul_(gain.to(values.dtype)[:, None]).view(-1)[:count]
    if bias is not None:
        values = _rows(values, bias, inner).add_(bias.to(values.dtype)[:, None]).view(-1)[:count]
    if signs is not None:
        above = unpack(signs, count)
        if slope:
            values = torch.where(above.bool(), values.clamp(min=0), slope * values.clamp(max=0))
        else:
            values = values.clamp_(min=0).mul_(above)
    return values.to(dtype)


def rectify(x: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """x where it is above 0, slope * x elsewhere, and a plane, set where it is above, as which NaN counts, too."""
    y = F.leaky_relu(x, slope) if slope else F.relu(x)
    return y, pack((~(x.reshape(-1) <= 0)).to(torch.uint8), 1)


def rectify_backward(grad: Tensor, signs: Tensor, slope: float) -> Tensor:
    """grad where the plane is set, and slope * grad elsewhere."""
    above = unpack(signs, grad.numel()).view(grad.shape).to(grad.dtype) - 0.5
    if slope:  # torch's own: on a CPU several times as fast as torch.where
        return torch.ops.aten.leaky_relu_backward(grad, above, slope, False)
    return torch.ops.aten.threshold_backward(grad, above, 0)
