"""The op `encode_sides` in plain PyTorch: K-bit codes that also tell on which side of a threshold numbers are."""

from math import lcm

import torch
from torch import Tensor

from kernels.engine.elements import computed
from kernels.engine.host import loops, on_host, pack
from kernels.engine.pieces import bytes_of, pieces
from kernels.engine.planes import plane_bytes
from kernels.engine.reference_codes import LARGEST, next_bfloat16

PIECE = 1 << 24  # elements coded at once, in 25 bytes each


def encode_sides(x: Tensor, inside: Tensor, group_size: int, bits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Bit planes, minima and scales of x by groups of neighbours, which tell `inside`, too; and the edge of each group.

    Codes from the edge on are those of the elements inside; where the scale has a minus sign, of those outside. The
    grid is laid so that the nearest codes are on the right side if a threshold divides a group; else they are moved.

    Parameters
    ----------
    x
        Numbers of any floating-point type.
    inside
        bool, of the shape of x.
    group_size, bits
        Of a group, of which the last may be shorter, and of a code.

    Returns
    -------
    planes, minimum, scale, edge
        uint8 [bits, ceil(n/8)]; bfloat16 [groups] twice; uint8 [groups].
    """
    flat, own = x.reshape(-1), inside.reshape(-1)
    neighbours = loops() if len(flat) and group_size <= LARGEST and on_host(flat) else None
    if neighbours is not None and computed(flat.dtype) == torch.float32:
        made: tuple[Tensor, Tensor, Tensor, Tensor] = neighbours.encode_sides(
            flat.contiguous(), own.contiguous(), group_size, bits
        )
        return made
    groups = -(-len(flat) // group_size)
    planes = flat.new_empty((bits, plane_bytes(len(flat))), dtype=torch.uint8)
    minimum, scale = (flat.new_empty(groups, dtype=torch.bfloat16) for _ in range(2))
    edge = flat.new_empty(groups, dtype=torch.uint8)
    for piece in pieces(len(flat), (group_size,), max(PIECE, lcm(group_size, 8))):
        of_groups = slice(piece.start // group_size, -(-piece.stop // group_size))
        missing = (piece.start - piece.stop) % group_size
        values, sides = flat[piece].float() + 0.0, own[piece]  # 0 for -0; the ends of groups are bfloat16
        if missing:
            values, sides = (torch.cat([part, part[-1:].expand(missing)]) for part in (values, sides))
        codes, *ends = sides_of_groups(values.view(-1, group_size), sides.view(-1, group_size), 1 << bits)
        planes[:, bytes_of(piece)] = pack(codes.view(-1)[: piece.stop - piece.start], bits)
        minimum[of_groups], scale[of_groups], edge[of_groups] = ends[0], ends[1], ends[2]
    return planes, minimum, scale, edge


def sides_of_groups(x: Tensor, inside: Tensor, levels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes uint8 of x, float32 [groups, size], with minimum, scale and edge, float32 [groups], as `encode_sides`.

    Of the levels, `below` lie below the threshold, the nearest half a scale from it, and the outermost are at most half
    a scale from the ends. So the scale is no larger than without a threshold, (high - low) / (levels - 1).
    """
    low, high, most = x.amin(-1), x.amax(-1), levels - 1.0
    top, other_top = (torch.where(side, x, -torch.inf).amax(-1) for side in (inside, ~inside))
    bottom, other_bottom = (torch.where(side, x, torch.inf).amin(-1) for side in (inside, ~inside))
    has_both, is_finite = inside.any(-1) & ~inside.all(-1), (high - low).isfinite()
    rises = torch.where(has_both, ~((top < other_top) & is_finite), inside[:, 0])
    threshold = (torch.where(rises, other_top, top) + torch.where(rises, bottom, other_bottom)) / 2
    divided = (high > low) & threshold.isfinite()
    share = levels * ((threshold - low) / (high - low))
    fewer, more = share.floor().clamp_(1, most), share.ceil().clamp_(1, most)
    least, other = (torch.maximum((threshold - low) / n, (high - threshold) / (levels - n)) for n in (fewer, more))
    scale, below = torch.minimum(least, other), torch.where(least <= other, fewer, more)
    start = torch.where(divided, threshold - (below - 0.5) * scale, low)
    minimum = -next_bfloat16(-start)
    scale = torch.where(divided, torch.maximum(scale, (high - minimum) / (levels - 0.5)), (high - minimum) / most)
    # Of a group with a NaN or an infinity all values become NaN, and the scale has a sign.
    minimum, scale = torch.where(is_finite, minimum, torch.nan), torch.where(is_finite, next_bfloat16(scale), torch.inf)
    inverse = torch.where(scale > 0, 1 / scale, 0)
    edge = ((threshold - minimum) * inverse + 1).floor_().nan_to_num_(1.0).clamp_(1, most)
    edge = torch.where(has_both, edge, 0)
    places = ((x - minimum[:, None]) * inverse[:, None] + 0.5).floor_().nan_to_num_(0.0).clamp_(0, most)
    above = (inside == rises[:, None]) | ~has_both[:, None]
    places = torch.where(above, torch.maximum(places, edge[:, None]), torch.minimum(places, edge[:, None] - 1))
    return places.to(torch.uint8), minimum, torch.where(rises, scale, -scale), edge
