"""Results are the same bit for bit wherever a tensor is cut into pieces."""

import pytest
import torch
from torch import Tensor

from actfit.kernels.engine import pieces, planes, reference_codes

# Elements of a group, entries of a vector, and elements: groups, a shorter last one, channels that recur, one group.
PLACES = (
    (64, 100, 6400),
    (64, 101, 6437),
    (49, 130, 6370),
    (49, 13, 6370),
    (7, 40, 6000),
    (1, 24, 4800),
    (5000, 1, 5000),
)


def made(x: Tensor, group: int, vector: Tensor, noise: Tensor) -> list[Tensor]:
    planes = reference_codes.encode(x, vector, 20 / vector, 3 * vector, noise, group, 4)
    return [
        *reference_codes.ends(x, group, 4),
        planes,
        reference_codes.decode(planes, vector, -vector, group, len(x), x.dtype),
    ]


@pytest.mark.parametrize(("group", "length", "count"), PLACES)
@pytest.mark.parametrize("most", [8, 200, 1024])
def test_of_any_size(group, length, count, most, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x, noise = (torch.rand(count, generator=generator) for _ in range(2))
    vector = torch.linspace(1, 2, length)
    of_elements = vector[torch.arange(count) // group % length]
    whole = made(x, group, vector, noise)
    places = ((x - of_elements) * (20 / of_elements) + noise).floor() + 3 * of_elements
    codes = places.clamp(0, 15).to(torch.uint8)
    assert torch.equal(planes.unpack(whole[2], count), codes)
    assert torch.equal(whole[3], codes * of_elements - of_elements)
    monkeypatch.setattr(pieces, "_LEAST", most)
    monkeypatch.setattr(pieces, "_A_THREAD", 1)
    assert len(list(pieces.pieces(count))) > 1
    assert all(map(torch.equal, made(x, group, vector, noise), whole))


def test_pieces_cut_no_byte_and_no_unit_that_fits(monkeypatch):
    monkeypatch.setattr(pieces, "_LEAST", 1000)
    monkeypatch.setattr(pieces, "_A_THREAD", 1)
    for units, length in (((), 1000), ((64,), 960), ((5000, 49), 784), ((999,), 1000)):
        assert next(piece.stop - piece.start for piece in pieces.pieces(2500, units)) == length
