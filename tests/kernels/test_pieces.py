"""Results are the same bit for bit wherever a tensor is cut into pieces."""

import pytest
import torch
from torch import Tensor

from kernels.engine import pieces, reference_codes

# group_size, features, tokens, outer: whole groups, a shorter last one, features, images, channels, one group.
PLACES = (
    (64, 1, 6400, 1), (64, 1, 6437, 1), (7, 12, 700, 1), (33, 5, 67, 20), (49, 1, 49, 130), (40, 3, 40, 50),
    (5000, 1, 5000, 1),
)  # fmt: skip


def made(x: Tensor, place: tuple[int, int, int], noise: Tensor) -> list[Tensor]:
    minimum, scale = reference_codes.ends(x, *place, 4)
    planes = reference_codes.encode(x, minimum, 1 / scale, torch.zeros_like(scale), noise, *place, 4)
    y, signs = reference_codes.rectify(x, 0.1)
    gain, bias, others = torch.linspace(-1, 2, 5), torch.linspace(3, 1, 12), (signs, 0.1, True, len(x), x.dtype)
    values = reference_codes.decode(planes, scale, minimum, *place, gain, bias, 3, *others)
    return [minimum, scale, planes, y, signs, values, reference_codes.rectify_backward(x, signs, 0.1)]


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("most", [8, 200, 1024])
def test_of_any_size(place, most, monkeypatch):
    *place, outer = place
    generator = torch.Generator().manual_seed(0)
    count = place[1] * place[2] * outer
    x, noise = (torch.rand(count, generator=generator) for _ in range(2))
    whole = made(x, place, noise)
    monkeypatch.setattr(pieces, "_LEAST", most)
    monkeypatch.setattr(pieces, "_A_THREAD", 1)
    assert len(list(pieces.pieces(count))) > 1
    assert all(map(torch.equal, made(x, place, noise), whole))


def test_pieces_cut_no_byte_and_no_unit_that_fits(monkeypatch):
    monkeypatch.setattr(pieces, "_LEAST", 1000)
    monkeypatch.setattr(pieces, "_A_THREAD", 1)
    for units, length in (((), 1000), ((64,), 960), ((5000, 49), 784), ((999,), 1000)):
        assert next(piece.stop - piece.start for piece in pieces.pieces(2500, units)) == length
