"""The Triton kernels of approximate backprop against the plain-PyTorch ones."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import kernels.engine.ops  # noqa: F401
from kernels.engine import launch_codes as launch
from kernels.engine import reference_codes as reference
from kernels.engine.planes import pack, plane_bytes, unpack

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
VECTORS = (*DTYPES, torch.float64)
HOSTILE = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e30, -1e30, 3.4e38, -3.4e38, 1e-30, -1e-40)
EDGES = (0, 1, 7, 8, 9, 64)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# The fixture gives one device to all examples.
several = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
seeds = st.integers(0, 2**31)
counts = st.one_of(st.sampled_from(EDGES), st.integers(0, 400))
inners = st.one_of(st.sampled_from((1, 1, 2, 7, 8, 9, 16, 40)), st.integers(1, 450))
outers, wides = st.integers(1, 4), st.one_of(st.sampled_from((1, 8, 16)), st.integers(1, 20))
lengths = st.one_of(st.sampled_from((1, 8, 16)), st.integers(1, 20))


def numbers(
    count: int, generator: torch.Generator, dtype: torch.dtype = torch.float32, hostile: bool = False
) -> Tensor:
    x = 3 * torch.randn(count, generator=generator)
    if hostile:
        at = torch.rand(count, generator=generator) < 0.1
        x[at] = torch.tensor(HOSTILE)[torch.randint(len(HOSTILE), (int(at.sum()),), generator=generator)]
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


def check_ends(
    x: Tensor, group_size: int, bits: int, device: str, features: int = 1, tokens: int | None = None
) -> tuple[Tensor, Tensor]:
    place = group_size, features, max(len(x), 1) if tokens is None else tokens
    made = tuple(tensor.cpu() for tensor in launch.ends(x.to(device), *place, bits))
    assert all(map(same, made, reference.ends(x, *place, bits)))
    return made


def groups_of(count: int, group_size: int, features: int, tokens: int) -> Tensor:
    """The group of each element by explicit counting: outer, then runs of tokens, then features."""
    place = torch.arange(count)
    outer, token, feature = place // (tokens * features), place // features % tokens, place % features
    return (outer * math.ceil(tokens / group_size) + token // group_size) * features + feature


@pytest.mark.slow
@given(seeds, st.tuples(outers, st.integers(1, 90), wides), st.integers(1, 100), st.integers(1, 8), st.booleans())
@example(0, (1, 399, 1), 100_000, 4, False)
@example(0, (2, 67, 8), 64, 4, False)
@several
def test_ends(device, seed, shape, run, bits, hostile):
    generator, (outer, tokens, features) = torch.Generator().manual_seed(seed), shape
    count = outer * tokens * features
    x = numbers(count, generator, DTYPES[seed % 3], hostile)
    minimum, scale = check_ends(x, run, bits, device, features, tokens)
    if not hostile:
        each = groups_of(count, run, features, tokens)
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
        for made in launch.ends(x.to(device), 8, 1, 16, 4):
            assert made.isnan().tolist() == [False, True]


def test_ends_of_a_group_over_several_tiles(device):
    x = torch.linspace(-3, 5, 150_001)
    for group in (70_000, 200_000):
        check_ends(x, group, 4, device)
        check_ends(-x, group, 4, device)


@pytest.mark.parametrize("count", [0, 1, 9])
def test_ends_are_rounded_outward(device, count):
    x = torch.full((count,), 1 + 2.0**-20)
    x[1:] = -x[1:]
    minimum, _ = check_ends(x, 1, 8, device)
    assert minimum.tolist() == [1.0, *[-1 - 2.0**-7] * 8][:count]


def codes(planes: Tensor, count: int, bits: int) -> Tensor:
    assert (planes.shape, planes.dtype) == ((bits, plane_bytes(count)), torch.uint8)
    return unpack(planes.cpu(), count)


@given(seeds, counts, inners, lengths, st.integers(1, 8), st.booleans(), st.sampled_from(("none", "one", "each")))
@example(1, 300, 5, 1, 4, False, "one")
@example(1, 300, 16, 5, 4, False, "each")
@example(1, 300, 12, 5, 3, False, "each")
@example(1, 300, 9, 2, 3, False, "none")
@example(1, 300, 1, 16, 8, False, "none")
@example(1, 300, 1, 24, 5, False, "none")
@example(1, 300, 3, 5, 8, False, "none")
@several
def test_encode(device, seed, count, inner, length, bits, hostile, kind):
    generator = torch.Generator().manual_seed(seed)
    x = numbers(count, generator, DTYPES[seed % 3], hostile)
    center, inverse_scale = (numbers(length, generator, VECTORS[seed % 4], hostile) for _ in range(2))
    # Scales that are not integers, too; and some vectors with a single entry for all.
    offset = torch.randint(-20, 300, (length,), generator=generator) / 2
    inverse_scale, offset = inverse_scale[: 1 if seed % 5 == 0 else None], offset[: 1 if seed % 7 == 0 else None]
    noise = {"none": None, "one": torch.rand(1, generator=generator)}.get(kind, torch.rand(count, generator=generator))
    made = launch.encode(*to(device, x, center, inverse_scale, offset, noise), inner, 1, inner, bits)
    expected = reference.encode(x, center, inverse_scale, offset, noise, inner, 1, inner, bits)
    assert torch.equal(codes(made, count, bits), codes(expected, count, bits))


@pytest.mark.parametrize("bits", range(1, 9))
def test_every_code_is_packed_and_unpacked(device, bits):
    x = torch.arange(-3, (1 << bits) + 3, dtype=torch.float32)
    zero, unit = torch.zeros(1, device=device), torch.ones(1, device=device)
    planes = launch.encode(x.to(device), zero, unit, zero, None, 1, 1, 1, bits)
    expected = x.clamp(0, (1 << bits) - 1)
    assert codes(planes, len(x), bits).tolist() == expected.tolist()
    made = launch.decode(planes, unit, zero, 1, 1, 1, None, None, 1, None, 0.0, True, len(x), torch.float32)
    assert torch.equal(made.cpu(), expected)


@given(
    st.tuples(seeds, counts, st.integers(1, 8)),
    st.tuples(inners, inners, lengths),
    st.tuples(*[st.sampled_from(("none", "one", "own"))] * 2),
    st.tuples(st.booleans(), st.sampled_from((0.0, 0.01, -0.5, 1.0)), st.booleans()),
)
@example((1, 300, 8), (12, 1, 16), ("own", "one"), (True, 0.01, False))
@example((1, 300, 2), (16, 12, 5), ("own", "own"), (False, 0.0, True))
@example((1, 300, 4), (256, 1, 1), ("none", "none"), (True, 0.0, True))
@several
def test_decode(device, drawn, places, kinds, signed):
    (seed, count, bits), (run, inner, channels), (with_signs, slope, hostile) = drawn, places, signed
    generator = torch.Generator().manual_seed(seed)
    dtype = DTYPES[seed % 3]
    planes = pack(torch.randint(1 << bits, (count,), generator=generator, dtype=torch.uint8), bits)
    groups = 1 if seed % 5 == 0 else max(1, -(-count // run))
    scale, minimum = (numbers(groups, generator, VECTORS[seed % 4], hostile) for _ in range(2))
    sizes = {"none": None, "one": 1, "own": channels}
    gain, bias = (
        None if sizes[kind] is None else numbers(sizes[kind], generator, VECTORS[seed % 4], hostile) for kind in kinds
    )
    signs = pack(torch.randint(2, (count,), generator=generator, dtype=torch.uint8), 1) if with_signs else None
    others, place = (slope, seed % 2 == 0, count, dtype), (run, 1, run)
    device_vectors = list(to(device, planes, scale, minimum, gain, bias, signs))
    made = launch.decode(*device_vectors[:3], *place, *device_vectors[3:5], inner, device_vectors[5], *others)
    expected = reference.decode(planes, scale, minimum, *place, gain, bias, inner, signs, *others)
    # The same operations in float32, each rounded, and one rounding to the dtype: nothing may differ.
    assert same(made.cpu(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, 100, 8208, 66_000])
@pytest.mark.parametrize("group", [8, 16, 64, 128])
@each_dtype
def test_groups_of_powers_of_two(device, dtype, group, count):
    """Of neighbours, from planes of their own and from a piece of longer ones, or in another order."""
    generator = torch.Generator().manual_seed(count)
    planes = pack(torch.randint(32, (3 * count,), generator=generator, dtype=torch.uint8), 5)
    start = count // 8
    pieces = planes[:, : plane_bytes(count)].contiguous(), planes[:, start : start + plane_bytes(count)]
    scale, minimum = (numbers(-(-count // group), generator, torch.bfloat16) for _ in range(2))
    place = group, 1, count
    rest = None, None, 1, None, 0.0, False, count, dtype
    for piece in (*pieces, pieces[0].t().contiguous().t()):
        expected = reference.decode(piece.contiguous(), scale, minimum, *place, *rest)
        assert same(reference.decode(piece, scale, minimum, *place, *rest), expected)
        assert same(launch.decode(*to(device, piece, scale, minimum), *place, *rest).cpu(), expected)


@pytest.mark.slow
def test_planes_far_apart(device):
    """Of more elements than 32 bits count in bits; only the bytes that are read take memory."""
    far = torch.empty((8, 310_000_000), dtype=torch.uint8, device=device)[:, :8]
    far.copy_(pack(torch.arange(64, dtype=torch.uint8), 8))
    scale, minimum = torch.ones(1), torch.zeros(1)
    made = launch.decode(
        far, *to(device, scale, minimum), 64, 1, 64, None, None, 1, None, 0.0, False, 64, torch.float32
    )
    assert made.tolist() == list(range(64))


@pytest.mark.slow
@given(seeds, st.tuples(outers, st.integers(1, 90), wides), st.integers(1, 100), st.integers(1, 8), st.booleans())
@example(0, (3, 67, 8), 34, 4, False)
@example(1, (3, 67, 1), 34, 4, True)
@example(2, (1, 67, 5), 34, 8, False)
@several
def test_groups_of_features(device, seed, shape, run, bits, hostile):
    """Codes and decoded values of groups along tokens; the reference follows the definition of a group."""
    generator, (outer, tokens, features) = torch.Generator().manual_seed(seed), shape
    count, place = outer * tokens * features, (run, features, tokens)
    x = numbers(count, generator, DTYPES[seed % 3], hostile)
    each = groups_of(count, *place)
    minimum, scale = reference.ends(x, *place, bits)
    inverse_scale, offset, half = (
        torch.where(scale > 0, 1 / scale.float(), 0),
        torch.zeros_like(minimum),
        torch.full((1,), 0.5),
    )
    made = launch.encode(*to(device, x, minimum, inverse_scale, offset, half), *place, bits)
    expected = (
        (((x.float() - minimum.float()[each]) * inverse_scale[each]) + 0.5).floor().nan_to_num(0).clamp(0, 2**bits - 1)
    )
    assert torch.equal(codes(made, count, bits).float(), expected)
    planes = reference.encode(x, minimum, inverse_scale, offset, half, *place, bits)
    rest = None, None, 1, None, 0.0, True, count, torch.float32
    values = reference.decode(planes, scale, minimum, *place, *rest)
    assert same(values, expected * scale.float()[each] + minimum.float()[each])
    assert same(launch.decode(*to(device, planes, scale, minimum), *place, *rest).cpu(), values)


@pytest.mark.parametrize(
    ("count", "place"),
    [
        (1, (32, 1, 1)),
        (1000, (32, 1, 1000)),
        (1000, (128, 1, 1000)),
        (96, (64, 1, 96)),  # the last group is shorter, by whole runs
        (1120, (128, 1, 1120)),
        (2048, (1024, 1, 2048)),
        (70_016, (64, 1, 70_016)),  # of several programs, in the interpreter too
        (96, (32, 1, 32)),
        (1000, (8, 1, 1000)),  # by two kernels, as the following are
        (120, (40, 1, 40)),
        (96, (16, 1, 24)),
        (96, (16, 4, 24)),
    ],
)
@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("around", [None, 9, -9])
@each_dtype
def test_groups_in_one_kernel(device, dtype, around, random, count, place):
    """Of numbers around 0, hostile ones among them, or far from it, so that one that is not there would be an end."""
    generator = torch.Generator().manual_seed(count)
    x = numbers(count, generator, dtype, hostile=around is None) + (around or 0)
    noise = torch.rand(count, generator=generator) if random else None
    for bits in (1, 2, 4, 7):
        made = launch.encode_groups(*to(device, x, noise), *place, bits)
        assert all(map(same, (tensor.cpu() for tensor in made), reference.encode_groups(x, noise, *place, bits)))


@given(seeds, counts, st.booleans(), st.sampled_from((0, 0.01, 0.3, -0.5, 1.0)))
@several
def test_rectify(device, seed, count, hostile, slope):
    generator = torch.Generator().manual_seed(seed)
    dtype = DTYPES[seed % 3]
    x, grad = (numbers(count, generator, dtype, hostile) for _ in range(2))
    y, signs = (tensor.cpu() for tensor in launch.rectify(x.to(device), slope))
    expected_y, expected_signs = reference.rectify(x, slope)
    # Both compute one product in float32 and round it to the dtype.
    assert same(y, expected_y)
    assert torch.equal(signs, expected_signs)
    dx = launch.rectify_backward(grad.to(device), signs.to(device), slope).cpu()
    assert same(dx, reference.rectify_backward(grad, signs, slope))


@pytest.mark.parametrize("slope", [0.0, 0.1])
@each_dtype
def test_nan_counts_as_above_zero(device, dtype, slope):
    x = torch.tensor([math.nan, -math.inf, math.inf, 0.0, -0.0, -1.0, 1.0]).to(dtype)
    y, signs = (tensor.cpu() for tensor in launch.rectify(x.to(device), slope))
    assert unpack(signs, 7).tolist() == [1, 0, 1, 0, 0, 0, 1]
    assert y.isnan().tolist() == [True] + [False] * 6


def test_shapes_stay(device):
    x = torch.randn(3, 5, 7).to(device)
    y, signs = launch.rectify(x, 0.1)
    assert (y.shape, signs.shape) == (x.shape, (1, 14))
    assert launch.rectify_backward(x, signs, 0.1).shape == x.shape
    vectors = (torch.ones(5, device=device) for _ in range(3))
    assert launch.encode(x, *vectors, torch.rand_like(x), 7, 1, 7, 3).shape == (3, 14)


def test_offsets_of_64_bits(device, monkeypatch):
    x = torch.randn(500, generator=torch.Generator().manual_seed(0)).to(device)
    vectors = [torch.randn(5, generator=torch.Generator().manual_seed(1)).to(device) for _ in range(3)]

    def run() -> list[Tensor]:
        planes = [launch.encode(x, *vectors, None, inner, 1, inner, 4) for inner in (1, 3, 8, 12)]
        others = [
            launch.decode(
                planes[0], *vectors[:2], 100, 1, 100, *vectors[1:], inner, None, 0.0, True, 500, torch.float32
            )
            for inner in (1, 3, 8, 12)
        ]
        for place in ((10, 4, 25), (10, 10, 50)):
            minimum, scale = launch.ends(x, *place, 4)
            planes.append(launch.encode(x, minimum, scale, scale, None, *place, 4))
        return [*(codes(plane, 500, 4) for plane in planes), *others]

    narrow = run()
    monkeypatch.setattr(launch, "NARROW", 0)
    assert all(map(torch.equal, run(), narrow))


def test_the_ops_run_the_kernels(device, monkeypatch):
    ops = torch.ops.actfit
    x, unit, zero = torch.randn(40).to(device), torch.ones(1, device=device), torch.zeros(1, device=device)

    def run() -> list[Tensor]:
        y, signs = ops.rectify(x, 0.1)
        planes = ops.encode(x, zero, unit, zero, None, 1, 1, 1, 4)
        values = ops.decode(planes, unit, zero, 40, 1, 40, None, None, 1, signs, 0.1, True, 40, torch.float16)
        return [
            *ops.encode_groups(x, None, 16, 1, 40, 4),
            planes,
            values,
            y,
            signs,
            ops.rectify_backward(y, signs, 0.1),
        ]

    called = set()

    def noticed(name: str) -> Callable[..., object]:
        original = getattr(launch, name)
        return lambda *args: (called.add(name), original(*args))[1]

    names = {"encode_groups", "encode", "decode", "rectify", "rectify_backward"}
    for name in names:
        monkeypatch.setattr(launch, name, noticed(name))
    made = run()
    assert called == names
    for name in names:
        monkeypatch.setattr(launch, name, getattr(reference, name))
    assert all(map(same, made, run()))
