"""The ops of K-bit codes in plain PyTorch: what CPU tensors run, and the reference of the Triton kernels.

A flat tensor is [outer, tokens, features], and `group_size` tokens in a row share an entry of a vector. Element i is

    feature, token, outer = i % features, i // features % tokens, i // (tokens * features)

and takes entry (outer * ceil(tokens / group_size) + token // group_size) * features + feature, modulo the vector's
length. So a group has elements of one feature only, `features` apart; with features = 1 and tokens = group_size it is
entry (i // group_size) % length, as channels have it. Vectors have any floating-point type, and one entry, or one for
each group or channel; the ops compute in float32, or in float64 for float64.
"""

from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.engine.codes import (
    Decode,
    Encode,
    called_with_fields_of,
    in_a_row,
    in_two_steps,
)
from kernels.engine.elements import computed
from kernels.engine.host import loops, on_host, pack, unpack
from kernels.engine.pieces import GroupEntries, bytes_of, pieces
from kernels.engine.planes import eights_of, plane_bytes

LARGEST = 1 << 16  # elements of a group for loops, which hold the codes of up to eight at once


def ends(x: Tensor, group_size: int, features: int, tokens: int, bits: int) -> tuple[Tensor, Tensor]:
    """The minimum of each group, rounded down to bfloat16, and its scale, rounded up: bfloat16 each.

    So 2^bits codes, from the minimum on and a scale apart, cover the whole group.
    """
    flat, groups = x.reshape(-1), x.numel() // tokens * -(-tokens // group_size)
    low, high = (x.new_full((groups,), end, dtype=torch.float32) for end in (torch.inf, -torch.inf))
    entries = GroupEntries(group_size, features, tokens, low, high)
    for piece in pieces(len(flat), entries.units):
        for part, lowest, highest in entries.parts(flat[piece].float(), piece.start):
            # Not aminmax, which takes several times as long.
            torch.minimum(lowest, part.amin(-2, keepdim=True), out=lowest)
            torch.maximum(highest, part.amax(-2, keepdim=True), out=highest)
    minimum = 0 - next_bfloat16(-low)  # 0, not -0, of zeros with any signs; so are scales
    scale = next_bfloat16((high - minimum + 0.0) / ((1 << bits) - 1))
    return minimum.bfloat16(), scale.bfloat16()


def next_bfloat16(values: Tensor) -> Tensor:
    """The values rounded up to bfloat16, which has the upper half of a float32's bits."""
    bits = (values > 0).to(torch.int32).mul_(0xFFFF).add_(values.view(torch.int32))
    return bits.bitwise_and_(~0xFFFF).view(torch.float32)


@called_with_fields_of(Encode)
def encode(args: Encode) -> Tensor:
    """Bit planes of floor((x - center) * inverse_scale + noise) + offset, clamped to [0, 2**bits - 1]; 0 for NaN."""
    flat, noise = args.x.reshape(-1), args.noise
    compute_dtype = computed(flat.dtype)
    vectors = (vector.to(compute_dtype) for vector in (args.center, args.inverse_scale, args.offset))
    entries = GroupEntries(args.group_size, args.features, args.tokens, *vectors)
    planes = flat.new_empty((args.bits, plane_bytes(len(flat))), dtype=torch.uint8)
    for piece in pieces(len(flat), entries.units):
        places = flat[piece].to(compute_dtype, copy=True)
        parts = list(entries.parts(places, piece.start))
        for part, center, inverse_scale, _ in parts:
            part.sub_(center).mul_(inverse_scale)
        if noise is not None:
            places += noise if noise.numel() == 1 else noise.reshape(-1)[piece]
        places.floor_()
        for part, *_, offset in parts:
            part.add_(offset)
        codes = places.nan_to_num_(0.0).clamp_(0, (1 << args.bits) - 1).to(torch.int32)  # straight to uint8 is slow
        planes[:, bytes_of(piece)] = pack(codes.to(torch.uint8), args.bits)
    return planes


def encode_groups(
    x: Tensor, noise: Tensor | None, group_size: int, features: int, tokens: int, bits: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Bit planes, minima and scales of x by groups. noise: one number for each of x; None: rounding to nearest."""
    flat, place = x.reshape(-1), (group_size, features, tokens)
    neighbours = _loops_for(flat, *place, len(flat))
    if neighbours is None or computed(flat.dtype) != torch.float32:
        return in_two_steps(ends, encode, flat, noise, *place, bits)
    own = None if noise is None else noise.float().reshape(-1).contiguous()
    made: tuple[Tensor, Tensor, Tensor] = neighbours.encode_groups(flat.contiguous(), own, group_size, bits)
    return made


@called_with_fields_of(Decode)
def decode(args: Decode) -> Tensor:
    """Flat values (code * scale + minimum) * gain + bias."""
    compute_dtype, channels = computed(args.dtype), (args.inner, 1, args.inner)
    vectors = [vector.to(compute_dtype) for vector in (args.scale, args.minimum)]
    made = args.planes.new_empty(args.count, dtype=args.dtype)
    neighbours = _loops_for(args.planes, args.group_size, args.features, args.tokens, args.count)
    has_groups = all(len(vector) == -(-args.count // args.group_size) for vector in vectors)
    if neighbours is not None and has_groups and all(vector is None for vector in (args.gain, args.bias, args.signs)):
        neighbours.decode(args.planes.contiguous(), *vectors, made, args.group_size)
        return made
    groups = GroupEntries(args.group_size, args.features, args.tokens, *vectors)
    gain, bias = (
        None if vector is None else GroupEntries(*channels, vector.to(compute_dtype))
        for vector in (args.gain, args.bias)
    )
    eights, signs = eights_of(len(args.planes), made.device), args.signs
    for piece in pieces(args.count, groups.units):
        count = piece.stop - piece.start
        values = unpack(args.planes[:, bytes_of(piece)], count, eights).to(compute_dtype)
        for part, scale, minimum in groups.parts(values, piece.start):
            part.mul_(scale).add_(minimum)
        for part, factor in gain.parts(values, piece.start) if gain else ():
            part.mul_(factor)
        for part, addend in bias.parts(values, piece.start) if bias else ():
            part.add_(addend)
        if signs is not None:
            above = unpack(signs[:, bytes_of(piece)], count, eights[:256])
            values = _signed(values, above, args.slope, args.clamp)
        made[piece] = values
    return made


def _loops_for(x: Tensor, group_size: int, features: int, tokens: int, count: int) -> ModuleType | None:
    """`kernels.engine.neighbours` for groups of neighbours; None without Numba, or elsewhere."""
    is_row = group_size <= LARGEST and in_a_row(count, group_size, features, tokens)
    return loops() if count and is_row and on_host(x) else None


def _signed(values: Tensor, above: Tensor, slope: float, clamp: bool) -> Tensor:
    """The values where they are known to be above 0, `slope` times the values elsewhere."""
    if slope:
        over, under = (values.clamp(min=0), values.clamp(max=0)) if clamp else (values, values)
        return torch.where(above.bool(), over, slope * under)
    return (values.clamp_(min=0) if clamp else values).mul_(above.to(values.dtype))


def rectify(x: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """x where it is above 0 or NaN, slope * x elsewhere, and a plane, set where x is above 0 or NaN."""
    flat, y = x.reshape(-1), F.leaky_relu(x, slope) if slope else F.relu(x)
    signs = x.new_empty((1, plane_bytes(len(flat))), dtype=torch.uint8)
    for piece in pieces(len(flat)):
        signs[:, bytes_of(piece)] = pack((flat[piece] <= 0).logical_not_(), 1)
    return y, signs


def rectify_backward(grad: Tensor, signs: Tensor, slope: float) -> Tensor:
    """grad where the plane is set, and slope * grad elsewhere."""
    flat, dx = grad.reshape(-1), grad.new_empty(grad.shape)
    flat_dx, eights = dx.view(-1), eights_of(1, dx.device)
    for piece in pieces(len(flat)):
        above = unpack(signs[:, bytes_of(piece)], piece.stop - piece.start, eights).to(grad.dtype).sub_(0.5)
        if slope:  # torch's own: on a CPU several times as fast as torch.where
            flat_dx[piece] = torch.ops.aten.leaky_relu_backward(flat[piece], above, slope, False)
        else:
            flat_dx[piece] = torch.ops.aten.threshold_backward(flat[piece], above, 0)
    return dx
