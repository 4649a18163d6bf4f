"""Loops over groups of neighbours against the plain operations, bit for bit."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

import actfit.kernels.engine.ops  # noqa: F401 - registers the ops
from actfit.kernels.engine import planes, reference_codes
from actfit.kernels.methods.table import Table

neighbours = pytest.importorskip("actfit.kernels.engine.neighbours", reason="Numba is not installed")

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e4, -3e38, 1e-40, -1e-40)


@contextmanager
def plain() -> Iterator[None]:
    """Without Numba's loops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference_codes, "loops", lambda: None)
        yield


def same(call: Callable[[], tuple[Tensor, ...]]) -> None:
    """Assert that the results are the same with Numba's loops and without, bit for bit but in NaNs."""
    with plain():
        expected = call()
    for got, want in zip(call(), expected, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        nan = want.isnan()
        assert torch.equal(got.isnan(), nan)
        assert torch.equal(got[~nan].view(torch.uint8), want[~nan].view(torch.uint8))


def coded(x: Tensor, group: int, bits: int, noise: Tensor | None = None) -> tuple[Tensor, ...]:
    made = reference_codes.encode_groups(x, noise, group, bits)
    return *made, reference_codes.decode_groups(*made, group, x.numel(), x.dtype)


@given(
    dtype=st.sampled_from(DTYPES),
    bits=st.integers(1, 8),
    group=st.sampled_from([8, 24, 48, 64, 80, 112, 128, 1024]),
    count=st.integers(1, 700),
    mean=st.sampled_from([0.0, 3.0, -100.0]),
    power=st.one_of(st.just(0), st.integers(-70, 70)),
    random=st.booleans(),
    special=st.lists(st.sampled_from(SPECIAL), max_size=3),
)
@example(torch.float16, 1, 8, 100, 0.0, -25, False, [])  # a group of zeros of either sign
def test_ranges_of_any_size_and_a_last_group_that_is_shorter(
    dtype: torch.dtype, bits: int, group: int, count: int, mean: float, power: int, random: bool, special: list[float]
) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    x = ((x.pow(3) if count % 2 else x).add_(mean) * 2.0**power).to(dtype)
    x[: len(special)] = torch.tensor(special[:count], dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    noise = torch.rand(count, dtype=wide, generator=torch.Generator().manual_seed(1)) if random else None
    same(lambda: coded(x, group, bits, noise))


@pytest.mark.parametrize("group", [128, 112])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pieces_and_threads(dtype: torch.dtype, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "LEAST", 1 << 12)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    x = torch.randn((1 << 19) + 40).to(dtype)  # four pieces, of 16-bit types
    same(lambda: coded(x, group, 5))
    noise = torch.rand(x.shape, dtype=torch.promote_types(dtype, torch.float32))
    same(lambda: coded(x, group, 5, noise))


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_empty_tensor_has_no_groups(dtype: torch.dtype) -> None:
    same(lambda: coded(torch.empty(0, dtype=dtype), 8, 3))


def test_tensors_with_strides_and_gradients_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "LEAST", 1 << 10)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    for x in (torch.randn(8000)[::2], torch.randn(4000, requires_grad=True), torch.randn(4000).bfloat16()[::2]):
        for context in (torch.no_grad(), torch.inference_mode()):
            with context:
                same(lambda x=x: coded(x, 8, 4))


TABLE = st.tuples(st.sets(st.floats(-3, 3), min_size=1, max_size=20), st.randoms(use_true_random=False))


@given(
    values=st.lists(st.floats(-4, 4, width=32) | st.sampled_from(SPECIAL), min_size=1, max_size=70),
    table=TABLE,
    wide=st.booleans(),
    repeats=st.sampled_from([1, 100]),
)
def test_codes_of_tables_are_found_as_by_a_search(values: list[float], table: Any, wide: bool, repeats: int) -> None:
    """Neighbours may share a code, and codes come in any order; a border belongs to the interval below it."""
    borders, random = sorted(table[0]), table[1]
    codes = [random.randrange(8) for _ in range(len(borders) + 1)]
    x = torch.tensor(values, dtype=torch.float64 if wide else torch.float32).repeat(repeats)
    made = Table(tuple(borders), tuple(codes), tuple(float(level) for level in range(8)))
    limits = borders if wide else made.float32_borders
    unpacked = planes.unpack(neighbours.table_codes(x, limits, codes, 3), len(x))
    interval = torch.bucketize(
        x.double().nan_to_num(-math.inf, math.inf, -math.inf), torch.tensor(borders, dtype=torch.float64)
    )
    assert torch.equal(unpacked, torch.tensor(codes, dtype=torch.uint8)[interval])


def test_codes_of_tables_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3 * neighbours.BLOCK + 5, generator=torch.Generator().manual_seed(0))
    whole = neighbours.table_codes(x, (-1.0, 0.5), (1, 0, 2), 2)
    assert torch.equal(planes.unpack(whole, len(x)), torch.tensor([1, 0, 2])[(x > -1).long() + (x > 0.5)].byte())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(neighbours, "LEAST", 1000)
    assert torch.equal(neighbours.table_codes(x, (-1.0, 0.5), (1, 0, 2), 2), whole)
