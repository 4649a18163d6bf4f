"""The Triton kernels of K-bit codes against plain PyTorch, bit for bit but in NaNs."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from actfit.kernels.engine import launch_codes as launch
from actfit.kernels.engine import ops
from actfit.kernels.engine import reference_codes as reference
from actfit.kernels.engine.planes import pack, plane_bytes, unpack

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
VECTORS = (*DTYPES, torch.float64)
HOSTILE = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e30, -1e30, 3.4e38, -3.4e38, 1e-30, -1e-40)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# The fixture gives one device to all examples.
several = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
seeds = st.integers(0, 2**31)
counts = st.one_of(st.sampled_from((0, 1, 7, 8, 9, 64)), st.integers(0, 400))
groups = st.sampled_from((8, 16, 40, 48, 64, 80, 96, 112, 1024))


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "loops", lambda: None)  # loops have tests of their own


def numbers(count: int, drawn: torch.Generator, dtype: torch.dtype = torch.float32, hostile: bool = False) -> Tensor:
    x = 3 * torch.randn(count, generator=drawn)
    if hostile:
        at = torch.rand(count, generator=drawn) < 0.1
        x[at] = torch.tensor(HOSTILE)[torch.randint(len(HOSTILE), (int(at.sum()),), generator=drawn)]
    return x.to(dtype)


def same(first: Tensor, second: Tensor) -> bool:
    """Whether shapes, dtypes and values are equal; NaN equals NaN."""
    return (
        (first.shape, first.dtype) == (second.shape, second.dtype)
        and torch.equal(first.isnan(), second.isnan())
        and torch.equal(first.nan_to_num(0.0), second.nan_to_num(0.0))
    )


def to(device: str, *tensors: Tensor | None) -> Iterator[Tensor | None]:
    return (None if tensor is None else tensor.to(device) for tensor in tensors)


def check_ends(x: Tensor, group: int, bits: int, device: str) -> tuple[Tensor, Tensor]:
    made = tuple(tensor.cpu() for tensor in launch.ends(x.to(device), group, bits))
    assert all(map(same, made, reference.ends(x, group, bits)))
    return made


@pytest.mark.slow
@given(seeds, counts, groups, st.integers(1, 8), st.booleans())
@several
def test_ends(device, seed, count, group, bits, hostile):
    x = numbers(count, torch.Generator().manual_seed(seed), DTYPES[seed % 3], hostile)
    minimum, scale = check_ends(x, group, bits, device)
    if not hostile:
        each = torch.arange(count) // group
        assert (minimum.double()[each] <= x.double()).all()
        top = minimum.double() + ((1 << bits) - 1) * scale.double()
        # The division by 2**bits - 1 may have rounded down to a number of bfloat16.
        assert (top[each] >= x.double() - 2.0**-23 * (top - minimum)[each].abs()).all()


@pytest.mark.parametrize("value", HOSTILE)
@each_dtype
def test_ends_of_hostile_groups(device, dtype, value):
    x = torch.linspace(-2, 2, 33).to(dtype)
    x[[5, 32]] = torch.tensor(value).to(dtype)
    minimum, scale = check_ends(x, 8, 2, device)
    if math.isnan(value):
        assert minimum.isnan().tolist() == scale.isnan().tolist() == [True, False, False, False, True]


def test_nan_of_any_bits_is_seen(device):
    # NaNs of either sign, also with a payload outside the bits that bfloat16 has.
    for bits in (0x7FC00000, -0x400000, 0x7F800001, -0x7FFFFF, 0x7FFFFFFF, -1):
        x = torch.arange(16, dtype=torch.float32)
        x.view(torch.int32)[11] = bits
        for made in launch.ends(x.to(device), 8, 4):
            assert made.isnan().tolist() == [False, True]


def codes(planes: Tensor, count: int, bits: int) -> Tensor:
    shape = (count,) if bits == 8 else (bits, plane_bytes(count))
    assert (planes.shape, planes.dtype) == (shape, torch.uint8)
    return planes.cpu() if bits == 8 else unpack(planes.cpu(), count)


def packed(codes: Tensor, bits: int) -> Tensor:
    return codes if bits == 8 else pack(codes, bits)


def check_encode(x: Tensor, ends: tuple[Tensor, ...], noise: Tensor | None, group: int, bits: int, device: str) -> None:
    made = launch.encode(*to(device, x, *ends, noise), group, bits)
    expected = reference.encode(x, *ends, noise, group, bits)
    assert torch.equal(codes(made, len(x), bits), codes(expected, len(x), bits))


@given(seeds, counts, groups, st.integers(1, 8), st.booleans(), st.booleans())
@several
def test_encode(device, seed, count, group, bits, hostile, random):
    drawn = torch.Generator().manual_seed(seed)
    x = numbers(count, drawn, DTYPES[seed % 3], hostile)
    ends = tuple(numbers(-(-count // group), drawn, VECTORS[seed % 4], hostile) for _ in range(2))
    check_encode(x, ends, torch.rand(count, generator=drawn) if random else None, group, bits, device)


def check_decode(planes: Tensor, ends: tuple[Tensor, ...], group: int, count: int, dtype: torch.dtype, device: str):
    made = launch.decode_groups(*to(device, planes, *ends), group, count, dtype)
    # The same operations in float32, each rounded, and one rounding to the dtype: nothing may differ.
    assert same(made.cpu(), reference.decode_groups(planes, *ends, group, count, dtype))
    assert dtype != torch.float16 or not made.isinf().any()


@given(seeds, counts, groups, st.integers(1, 8), st.booleans())
@example(1, 70_016, 64, 5, True)
@several
def test_decode(device, seed, count, group, bits, hostile):
    drawn = torch.Generator().manual_seed(seed)
    planes = packed(torch.randint(1 << bits, (count,), generator=drawn, dtype=torch.uint8), bits)
    ends = tuple(numbers(-(-count // group), drawn, VECTORS[seed % 4], hostile) for _ in range(2))
    check_decode(planes, ends, group, count, DTYPES[seed % 3], device)


@each_dtype
def test_planes_of_their_own_or_a_piece_of_longer_ones_or_in_another_order(device, dtype):
    count, group, drawn = 8208, 16, torch.Generator().manual_seed(0)
    planes = pack(torch.randint(32, (3 * count,), generator=drawn, dtype=torch.uint8), 5)
    start = count // 8
    pieces = planes[:, : plane_bytes(count)].contiguous(), planes[:, start : start + plane_bytes(count)]
    ends = tuple(numbers(-(-count // group), drawn, torch.bfloat16) for _ in range(2))
    for piece in (*pieces, pieces[0].t().contiguous().t()):
        check_decode(piece, ends, group, count, dtype, device)
        expected = reference.decode_groups(piece.contiguous(), *ends, group, count, dtype)
        assert same(reference.decode_groups(piece, *ends, group, count, dtype), expected)


@pytest.mark.parametrize(
    ("count", "group"),
    [
        *[(1, 32), (1000, 32), (1000, 128), (2048, 1024)],
        *[(96, 64), (1120, 128)],  # the last group is shorter, by whole runs
        (70_016, 64),  # of several programs, in the interpreter too
        *[(1000, 8), (120, 40)],  # by two kernels
    ],
)
@pytest.mark.parametrize(("around", "random"), [(None, False), (9, True), (-9, False)])
@each_dtype
def test_encode_groups(device, dtype, around, random, count, group):
    """Of numbers around 0, hostile ones among them, or far from it, so that one that is not there would be an end."""
    drawn = torch.Generator().manual_seed(count)
    x = numbers(count, drawn, dtype, hostile=around is None) + (around or 0)
    noise = torch.rand(count, generator=drawn) if random else None
    for bits in (1, 7, 8):
        made = launch.encode_groups(*to(device, x, noise), group, bits)
        assert all(map(same, (tensor.cpu() for tensor in made), reference.encode_groups(x, noise, group, bits)))


@pytest.mark.parametrize("count", [0, 1, 8, 1003, 70_016])
def test_bools(device, count):
    x = torch.rand(count, generator=torch.Generator().manual_seed(count)) < 0.3
    made = launch.pack(x.to(device))
    assert torch.equal(made.cpu(), pack(x.view(torch.uint8), 1)[0])
    assert torch.equal(launch.unpack(made, count).cpu(), x)


def test_offsets_of_64_bits(device, monkeypatch):
    x, drawn = torch.randn(500, generator=torch.Generator().manual_seed(0)), torch.Generator().manual_seed(1)
    launch._decoding.cache_clear()
    monkeypatch.setattr(launch, "NARROW", 0)
    for group in (8, 112):
        ends = tuple(torch.randn(-(-500 // group), generator=drawn) for _ in range(2))
        check_encode(x, ends, None, group, 4, device)
        check_decode(reference.encode(x, *ends, None, group, 4), ends, group, 500, torch.float32, device)
    launch._decoding.cache_clear()


def test_the_ops_run_the_kernels(device, monkeypatch):
    x, unit, zero = torch.randn(40).to(device), torch.ones(5, device=device), torch.zeros(5, device=device)

    def run() -> list[Tensor]:
        codes = ops.encode(x, zero, unit, None, 8, 4)
        values = torch.ops.actfit.decode_groups(codes, zero, unit, 8, 40, torch.float16)
        return [*torch.ops.actfit.encode_groups(x, None, 16, 4), codes, values]

    called = set()

    def noticed(name: str) -> Callable[..., object]:
        original = getattr(launch, name)
        return lambda *args: (called.add(name), original(*args))[1]

    names = {"encode_groups", "encode", "decode_groups"}
    for name in names:
        monkeypatch.setattr(launch, name, noticed(name))
    made = run()
    assert called >= names
    for name in names:
        monkeypatch.setattr(launch, name, getattr(reference, name))
    assert all(map(same, made, run()))


@pytest.mark.parametrize("group", [0, 4, 86, 2048])
def test_sizes_of_groups(group):
    x = torch.randn(4096)
    with pytest.raises(ValueError, match=f"group_size must be a multiple of 8, at most 1024, got {group}"):
        ops.encode_groups(x, None, group, 4)
    with pytest.raises(ValueError, match="group_size must be"):
        ops.decode_groups(x.byte(), x, x, group, 4096, x.dtype)


def test_what_was_compiled_is_launched_again_for_tensors_of_its_kind_alone():
    pytest.importorskip("triton", reason="Triton is not installed")
    log = []

    class Kernel:
        """Before and after it was compiled."""

        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
            return lambda *given, **named: (log.append((self.name, grid, len(given))), Kernel("compiled"))[1]

    run, x = launch.Launch(Kernel("new"), 2, 64, BITS=4), torch.zeros(80)
    for tensor in (x, x, x[1:], x.double(), x):  # another alignment, another dtype
        run(tensor)
    assert [name for name, *_ in log] == ["new", "compiled", "new", "new", "compiled"]
    assert log[1] == ("compiled", (2, 1, 1), 3)  # the tensor, the count, the constant


def test_ends_may_be_of_any_type_and_must_be_those_of_groups() -> None:
    """With Numba's loops, too, which read bfloat16 alone."""
    x = torch.randn(200, generator=torch.Generator().manual_seed(0))
    codes, minimum, scale = torch.ops.actfit.encode_groups(x, None, 64, 8)
    expected = torch.ops.actfit.decode_groups(codes, minimum, scale, 64, 200, torch.float32)
    got = torch.ops.actfit.decode_groups(codes, minimum.float(), scale.float(), 64, 200, torch.float32)
    assert torch.equal(got, expected)
    with pytest.raises(ValueError, match=r"^minimum and scale must have 4 entries, got 3 and 4$"):
        torch.ops.actfit.decode_groups(codes, minimum[:3], scale, 64, 200, torch.float32)
    for wrong in (codes[:199], codes.long()):
        with pytest.raises(ValueError, match=r"^codes must be uint8 of length 200, got torch\."):
            torch.ops.actfit.decode_groups(wrong, minimum, scale, 64, 200, torch.float32)


def test_negated_views_are_encoded_as_they_are_read() -> None:
    x = torch.randn(200, generator=torch.Generator().manual_seed(0))
    negated = torch._neg_view(x)
    for made, expected in zip(ops.encode_groups(negated, None, 64, 4), ops.encode_groups(-x, None, 64, 4), strict=True):
        assert torch.equal(made, expected)
