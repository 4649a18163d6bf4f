"""Codes by groups: decoding, its error, and bytes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from actfit.kernels.compression import codes
from actfit.kernels.compression.codes import Codes
from actfit.kernels.compression.forms import Bits, Groups, coded_bytes
from actfit.kernels.compression.layout import GroupLayout, layout_of

EPS = torch.finfo(torch.float32).eps
WIDTHS = range(2, 9)
each_width = pytest.mark.parametrize("bits", WIDTHS)


def again(x: Tensor, bits: int) -> tuple[Tensor, Codes]:
    """The decoded groups, and the codes."""
    made = codes.encode(x, bits)
    return codes.decode(made, bits, x.dtype), made


@each_width
@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=32))
def test_values_come_back_within_half_a_step(bits: int, values: list[float]) -> None:
    """Half a step, and float32's rounding of the position and of the value."""
    x = torch.tensor([*values, *[values[0]] * (32 - len(values))]).view(1, 32)
    decoded, made = again(x, bits)
    step, minimum = made.step.float(), made.minimum.float()
    rounding = 4 * EPS * (2**bits * step + minimum.abs()) + torch.finfo(torch.float32).smallest_normal
    assert bool(((decoded - x).abs() <= 0.5 * step + rounding).all())


@each_width
def test_the_step_is_the_range_by_the_codes(bits: int) -> None:
    """Rounding step and minimum outwards to bfloat16 adds at most 2^-7 of either to the step."""
    x = torch.randn(1000, 64)
    made = codes.encode(x, bits)
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    steps = (1 << bits) - 1
    assert bool((made.minimum.float() <= low).all())
    assert bool((made.minimum.float() + made.step.float() * steps >= high * (1 - 4 * EPS)).all())
    assert bool((made.step.float() <= ((high - low) + low.abs() / 128) / steps * (1 + 1 / 128)).all())


@each_width
def test_ends_of_a_group_come_back(bits: int) -> None:
    """If they and the step are bfloat16 numbers."""
    x = torch.tensor([0.0, 2.0**bits - 1, *[1.0] * 30])[None]
    assert torch.equal(again(x, bits)[0], x)


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_seen_in_the_gradient(value: float, bits: int) -> None:
    """Its group becomes NaN, as would the gradients computed from it; the other groups do not."""
    x = torch.randn(2, 32)
    x[0, 5] = value
    lost = codes.decode(codes.encode(x, bits), bits, x.dtype).isnan()
    assert bool(lost[0].all())
    assert int(lost.sum()) == 32


@pytest.mark.parametrize("bits", [2, 4])
def test_stochastic_rounding_has_the_right_mean(bits: int) -> None:
    """The mean of n is off by at most six standard errors of n values whose spread is at most half a step."""
    torch.manual_seed(0)
    x, count = torch.rand(8, 32), 4000
    made = codes.encode(x.expand(count, 8, 32), bits, torch.rand(count, 8, 32))
    mean = codes.decode(made, bits, torch.float32).double().mean(0)
    allowed = 6 * 0.5 * float(made.step.float().max()) / count**0.5
    assert float((mean - x).abs().max()) < allowed


def test_bools_come_back() -> None:
    x = torch.randn(7, 32) < 0.3
    assert torch.equal(codes.decode_bits(codes.encode_bits(x)), x)


@each_width
def test_fields_hold_all_bits(bits: int) -> None:
    held = [bit for width, lowest in codes.fields_of(bits) for bit in range(lowest, lowest + width)]
    assert held == list(range(bits))


TENSORS = {
    "contiguous": torch.randn(4, 32, 64),
    "permuted": torch.randn(4, 32, 64).permute(2, 0, 1),
    "channels last": torch.randn(2, 16, 8, 8).to(memory_format=torch.channels_last),
    "no multiple of a group": torch.randn(5, 13),
}


@pytest.mark.parametrize(
    ("shape", "group"),
    {
        (4, 32, 64): 64,
        (4, 32, 768): 64,
        (4, 30, 96): 96,
        (4, 2, 30, 80): 80,
        (4, 30, 32): 32,
        (4, 16, 28, 28): 112,  # a channel, whose rows no group fills
        (4, 77, 20): 80,  # several tokens, as a token fills no group
        (5, 13): 64,
    }.items(),
)
def test_groups_fill_a_token_or_channel(shape: tuple[int, ...], group: int) -> None:
    """So that none takes elements of two."""
    layout = layout_of(torch.empty(shape))
    assert isinstance(layout, GroupLayout)
    assert layout.group == group


@pytest.mark.parametrize("x", TENSORS.values(), ids=TENSORS)
def test_places_of_a_tensor(x: Tensor) -> None:
    """Groups follow one another in memory; `join` restores the tensor with its strides."""
    layout = layout_of(x)
    assert isinstance(layout, GroupLayout)
    groups = layout.split(x)
    memory = torch.as_strided(x, (x.numel(),), (1,))
    assert torch.equal(groups.flatten()[: x.numel()], memory)
    joined = layout.join(groups, [x.shape[dim] for dim in layout.order])
    assert torch.equal(joined, x)
    assert joined.contiguous().stride() == x.contiguous().stride()


def test_tensors_with_gaps_have_no_places() -> None:
    assert layout_of(torch.randn(8, 64)[:, ::2]) == "its elements overlap or have gaps"
    assert layout_of(torch.randn(1, 64).expand(8, 64)) == "its elements overlap or have gaps"


@each_width
@pytest.mark.parametrize("x", TENSORS.values(), ids=TENSORS)
def test_bytes_are_those_of_the_codes(x: Tensor, bits: int) -> None:
    layout = layout_of(x)
    assert isinstance(layout, GroupLayout)
    made = codes.encode(layout.split(x), bits)
    count = made.minimum.nbytes + made.step.nbytes + sum(field.nbytes for field in made.fields)
    assert coded_bytes(x, Groups(bits, layout)) == count
    bools = x > 0
    assert coded_bytes(bools, Bits(layout)) == codes.encode_bits(layout.split(bools)).nbytes
