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

from kernels.engine.codes import Decode, Encode, taking
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
    """The minimum of each group, rounded down to bfloat16, and the step from code to code, rounded up: bfloat16 each.

    So 2^bits codes from the minimum on, a step apart, reach over the whole group.
    """
    flat, groups = x.reshape(-1, tokens, wide).float(), -(-tokens // run)
    if tokens % run:  # the last token again changes no minimum and no maximum
        flat = torch.cat([flat, flat[:, -1:].expand(-1, groups * run - tokens, -1)], 1)
    split = flat.view(-1, groups, run, wide)
    if wide == 1:
        low, high = torch.aminmax(split.view(-1, run), dim=1)
    else:  # along another dimension than the last, two passes take half as long
        low, high = split.amin(2).view(-1), split.amax(2).view(-1)
    minimum = -next_bfloat16(-low)
    step = next_bfloat16((high - minimum) / ((1 << bits) - 1))
    return minimum.bfloat16(), step.bfloat16()


def next_bfloat16(values: Tensor) -> Tensor:
    """The next number of bfloat16, or the same; it keeps the upper half of a float32's bits."""
    bits = values.view(torch.int32)
    return torch.where(values > 0, (bits + 0xFFFF) & ~0xFFFF, bits & ~0xFFFF).view(torch.float32)


@taking(Encode)
def encode(given: Encode) -> Tensor:
    """Bit planes of floor((x - center) * scale + noise) + offset, not below 0 and below 2**bits; NaN has code 0."""
    flat = given.x.reshape(-1).to(computed(given.x.dtype))
    length, noise, place = len(given.center), given.noise, (given.run, given.wide, given.tokens)
    vectors = (given.center, given.scale, given.offset)
    center, scale, offset = (_entries(vector.to(flat.dtype), *place) for vector in vectors)
    places = (_split(flat, length, *place) - center).mul_(scale)
    if noise is not None:
        places += noise if noise.numel() == 1 else _split(noise.reshape(-1), length, *place)
    codes = places.floor_().add_(offset).nan_to_num_(0.0).clamp_(0, (1 << given.bits) - 1)
    return pack(_joined(codes, given.tokens, flat.numel()).to(torch.uint8), given.bits)


@taking(Decode)
def decode(given: Decode) -> Tensor:
    """Flat values (code * step + base) * gain + bias."""
    values, place = unpack(given.planes, given.count).to(computed(given.dtype)), (given.run, given.wide, given.tokens)
    step, base = (_entries(vector.to(values.dtype), *place) for vector in (given.step, given.base))
    values = _joined(_split(values, len(given.step), *place).mul_(step).add_(base), given.tokens, given.count)
    channels = given.inner, 1, given.inner
    for vector, combine in ((given.gain, Tensor.mul_), (given.bias, Tensor.add_)):
        if vector is not None:
            entries = _entries(vector.to(values.dtype), *channels)
            values = combine(_split(values, len(vector), *channels), entries).view(-1)[: given.count]
    if given.signs is not None:
        above = unpack(given.signs, given.count)
        if given.slope:
            over, under = (values.clamp(min=0), values.clamp(max=0)) if given.clamp else (values, values)
            values = torch.where(above.bool(), over, given.slope * under)
        else:
            values = (values.clamp_(min=0) if given.clamp else values).mul_(above)
    return values.to(given.dtype)


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
