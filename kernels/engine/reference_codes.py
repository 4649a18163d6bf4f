"""The ops of K-bit codes in plain PyTorch: what CPU tensors run, and the reference of the Triton kernels.

A flat tensor is [outer, tokens, wide], and `run` tokens in a row share an entry of a vector: element i takes entry
((i // (tokens * wide)) * ceil(tokens / run) + i % (tokens * wide) // wide // run) * wide + i % wide of it, modulo its
length. So a group has elements of one feature only, `wide` apart; with wide = 1 and tokens = run it is entry
(i // run) % length, as channels have it. Vectors have any floating-point type, and one entry, or as many as there are
groups or channels; all is computed in float32, or in float64 for float64.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.engine.elements import computed
from kernels.engine.planes import pack, unpack


def _split(flat: Tensor, length: int, run: int, wide: int, tokens: int) -> Tensor:
    """[-1, outer, groups, run, wide], filled up with zeros, along which a vector from `_entries` goes."""
    groups = -(-tokens // run)
    outer = max(length // (groups * wide), 1)
    missing = -flat.numel() % (outer * tokens * wide)
    flat = (F.pad(flat, (0, missing)) if missing else flat).view(-1, outer, tokens, wide)
    if tokens % run:
        flat = F.pad(flat, (0, 0, 0, groups * run - tokens))
    return flat.view(-1, outer, groups, run, wide)


def _entries(vector: Tensor, run: int, wide: int, tokens: int) -> Tensor:
    """The vector as it goes along what `_split` gives."""
    groups = -(-tokens // run)
    return vector if len(vector) == 1 else vector.view(-1, groups, 1, wide)


def _joined(split: Tensor, tokens: int, count: int) -> Tensor:
    """The first `count` elements of a flat tensor that was split."""
    _, outer, groups, run, wide = split.shape
    if groups * run != tokens:
        split = split.reshape(-1, outer, groups * run, wide)[:, :, :tokens]
    return split.reshape(-1)[:count]


def ends(x: Tensor, run: int, wide: int, tokens: int, bits: int) -> tuple[Tensor, Tensor]:
    """The least of each group, rounded down to bfloat16, and the step from code to code, rounded up: bfloat16 each.

    So 2^bits codes from the least on, a step apart, reach over the whole group.
    """
    flat, groups = x.reshape(-1, tokens, wide).float(), -(-tokens // run)
    if tokens % run:  # the last token again changes no minimum and no maximum
        flat = torch.cat([flat, flat[:, -1:].expand(-1, groups * run - tokens, -1)], 1)
    split = flat.view(-1, groups, run, wide)
    if wide == 1:
        low, high = torch.aminmax(split.view(-1, run), dim=1)
    else:  # along another dimension than the last, two passes take half as long
        low, high = split.amin(2).view(-1), split.amax(2).view(-1)
    least = -_up(-low)
    step = _up((high - least) / ((1 << bits) - 1))
    return least.bfloat16(), step.bfloat16()


def _up(values: Tensor) -> Tensor:
    """The next number of bfloat16, or the same; it keeps the upper half of a float32's bits."""
    bits = values.view(torch.int32)
    return torch.where(values > 0, (bits + 0xFFFF) & ~0xFFFF, bits & ~0xFFFF).view(torch.float32)


def encode(
    x: Tensor,
    center: Tensor,
    scale: Tensor,
    offset: Tensor,
    noise: Tensor | None,
    run: int,
    wide: int,
    tokens: int,
    bits: int,
) -> Tensor:
    """Bit planes of floor((x - center) * scale + noise) + offset, not below 0 and below 2**bits; NaN has code 0.

    noise: from [0, 1) and as many as x has, or one for all, or none.
    """
    flat = x.reshape(-1).to(computed(x.dtype))
    length, place = len(center), (run, wide, tokens)
    center, scale, offset = (_entries(one.to(flat.dtype), *place) for one in (center, scale, offset))
    places = (_split(flat, length, *place) - center).mul_(scale)
    if noise is not None:
        places += noise if noise.numel() == 1 else _split(noise.reshape(-1), length, *place)
    codes = places.floor_().add_(offset).nan_to_num_(0.0).clamp_(0, (1 << bits) - 1)
    return pack(_joined(codes, tokens, flat.numel()).to(torch.uint8), bits)


def decode(
    planes: Tensor,
    step: Tensor,
    base: Tensor,
    run: int,
    wide: int,
    tokens: int,
    gain: Tensor | None,
    bias: Tensor | None,
    inner: int,
    signs: Tensor | None,
    slope: float,
    clamp: bool,
    count: int,
    dtype: torch.dtype,
) -> Tensor:
    """Flat values (code * step + base) * gain + bias.

    step and base belong to groups, gain and bias to channels of `inner` elements. signs: one plane, set where the value
    is known to be above 0; elsewhere it is times `slope`. clamp: a value with the wrong sign becomes 0 before, which
    makes the error of codes to nearest less, and the mean of stochastic ones wrong.
    """
    values, place = unpack(planes, count).to(computed(dtype)), (run, wide, tokens)
    step, length, base = _entries(step.to(values.dtype), *place), len(step), _entries(base.to(values.dtype), *place)
    values = _joined(_split(values, length, *place).mul_(step).add_(base), tokens, count)
    if gain is not None:
        values = _split(values, len(gain), inner, 1, inner).mul_(_entries(gain.to(values.dtype), inner, 1, inner))
        values = values.view(-1)[:count]
    if bias is not None:
        values = _split(values, len(bias), inner, 1, inner).add_(_entries(bias.to(values.dtype), inner, 1, inner))
        values = values.view(-1)[:count]
    if signs is not None:
        above = unpack(signs, count)
        if slope:
            over, under = (values.clamp(min=0), values.clamp(max=0)) if clamp else (values, values)
            values = torch.where(above.bool(), over, slope * under)
        else:
            values = (values.clamp_(min=0) if clamp else values).mul_(above)
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
