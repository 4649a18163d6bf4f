"""Loops over groups of neighbours against the plain operations, bit for bit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.engine import reference_codes
from kernels.engine.groups import encode_groups

neighbours = pytest.importorskip("kernels.engine.neighbours", reason="Numba is not installed")

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
UNSIGNED = None, None, 1, None, 0.0, False


@contextmanager
def plain() -> Iterator[None]:
    """Without Numba's loops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference_codes, "loops", lambda: None)
        yield


def same(call: Callable[[], tuple[Tensor, ...]]) -> None:
    """Assert that the results are the same bits with Numba's loops and without."""
    with plain():
        expected = call()
    for got, want in zip(call(), expected, strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


def coded(x: Tensor, place: tuple[int, int, int], bits: int, noise: Tensor | None = None) -> tuple[Tensor, ...]:
    planes, minimum, step = encode_groups(x, place, bits, noise)
    return planes, torch.ops.actfit.decode(planes, step, minimum, *place, *UNSIGNED, x.numel(), x.dtype)


@given(
    dtype=st.sampled_from(DTYPES),
    bits=st.integers(1, 8),
    group=st.sampled_from([8, 24, 32, 64, 128]),
    count=st.integers(1, 700),
    random=st.booleans(),
    special=st.lists(st.sampled_from([float("nan"), float("inf"), -float("inf"), 0.0, 1e4]), max_size=3),
)
def test_a_row_whose_last_group_is_shorter(
    dtype: torch.dtype, bits: int, group: int, count: int, random: bool, special: list[float]
) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(count)).to(dtype)
    x[: len(special)] = torch.tensor(special[:count], dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    noise = torch.rand(count, dtype=wide, generator=torch.Generator().manual_seed(1)) if random else None
    same(lambda: coded(x, (group, 1, count), bits, noise))


@given(rows=st.integers(1, 5), groups=st.integers(1, 5), group=st.sampled_from([8, 40]), bits=st.integers(1, 8))
def test_rows_of_whole_groups(rows: int, groups: int, group: int, bits: int) -> None:
    x = torch.randn(rows * groups * group, generator=torch.Generator().manual_seed(rows))
    same(lambda: coded(x, (group, 1, groups * group), bits))


@pytest.mark.parametrize("dtype", DTYPES)
def test_pieces_and_threads(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "LEAST", 1 << 12)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    x = torch.randn((1 << 19) + 40).to(dtype)  # four pieces, of 16-bit types
    same(lambda: coded(x, (128, 1, x.numel()), 5))
    noise = torch.rand(x.shape, dtype=torch.promote_types(dtype, torch.float32))
    same(lambda: coded(x, (128, 1, x.numel()), 5, noise))


def test_offsets_move_codes() -> None:
    x, center, inverse = torch.randn(256), torch.zeros(4), torch.full((4,), 3.0)
    offset, noise = torch.tensor([0.0, 1.0, 5.0, -2.0]), torch.tensor([0.5])
    same(lambda: (torch.ops.actfit.encode(x, center, inverse, offset, noise, 64, 1, 256, 3),))


@pytest.mark.parametrize(
    ("place", "entries"),
    [((64, 4, 64), 16), ((20, 1, 256), 13), ((64, 1, 96), 4), ((64, 1, 256), 1)],
    ids=["features", "no whole bytes", "short groups", "one entry"],
)
def test_other_layouts_take_the_plain_operations(
    place: tuple[int, int, int], entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: Any) -> None:
        raise AssertionError("not for this layout")

    monkeypatch.setattr(neighbours, "encode", refused)
    x, vector = torch.randn(192 if place[2] == 96 else 256), torch.ones(entries)
    torch.ops.actfit.encode(x, vector, vector, vector, torch.tensor([0.5]), *place, 4)
