"""Results are the same bit for bit wherever a tensor is cut into pieces."""

import pytest
import torch
from torch import Tensor

from actfit.kernels.engine import pieces, planes, reference_codes


def made(x: Tensor, group: int, vector: Tensor, noise: Tensor) -> list[Tensor]:
    planes = reference_codes.encode(x, vector, 20 / vector, noise, group, 4)
    return [
        *reference_codes.ends(x, group, 4),
        planes,
        reference_codes.decode_groups(planes, -vector, vector, group, len(x), x.dtype),
    ]


@pytest.mark.parametrize(("group", "count"), [(64, 6400), (64, 6437), (112, 6400), (8, 4804), (1024, 5000)])
@pytest.mark.parametrize("most", [8, 200, 1024])
def test_of_any_size(group, count, most, monkeypatch):
    monkeypatch.setattr(reference_codes, "loops", lambda: None)
    generator = torch.Generator().manual_seed(0)
    x, noise = (torch.rand(count, generator=generator) for _ in range(2))
    vector = torch.linspace(0.5, 1, -(-count // group))
    of_elements = vector[torch.arange(count) // group]
    whole = made(x, group, vector, noise)
    codes = ((x - of_elements) * (20 / of_elements) + noise).floor().clamp(0, 15).to(torch.uint8)
    assert torch.equal(planes.unpack(whole[2], count), codes)
    assert torch.equal(whole[3], codes * of_elements - of_elements)
    monkeypatch.setattr(pieces, "_LEAST", most)
    monkeypatch.setattr(pieces, "_A_THREAD", 1)
    assert len(list(pieces.pieces(count, group))) > 1
    assert all(map(torch.equal, made(x, group, vector, noise), whole))


def test_pieces_cut_no_group(monkeypatch):
    monkeypatch.setattr(pieces, "_LEAST", 1000)
    monkeypatch.setattr(pieces, "_A_THREAD", 1)
    for group, length in ((8, 1000), (64, 960), (112, 896), (1024, 1024)):
        assert next(piece.stop - piece.start for piece in pieces.pieces(9000, group)) == length
