"""Codes by groups: decoding, its error, and bytes."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from actfit.kernels.compression.forms import Bits, Groups, coded_bytes
from actfit.kernels.compression.layout import GroupLayout, layout_of
from actfit.kernels.graph.codes import encode, pack, unpack
from tests.kernels.compression import graphs
from tests.kernels.compression.cuts import through_codes

EPS = torch.finfo(torch.float32).eps
WIDTHS = range(2, 9)
each_width = pytest.mark.parametrize("bits", WIDTHS)


@each_width
@example([0.0, 1e-44])  # one over the step of which is infinite
@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=32))
def test_values_come_back_within_half_a_step(bits: int, values: list[float]) -> None:
    """Half a step, and float32's rounding of the position and of the value."""
    x = torch.tensor([*values, *[values[0]] * (32 - len(values))]).view(1, 32)
    decoded, step = through_codes(x, bits)
    rounding = 4 * EPS * (2**bits * step + x.abs().amax()) + torch.finfo(torch.float32).smallest_normal
    assert bool(((decoded - x).abs() <= 0.5 * step + rounding).all())


@each_width
def test_the_step_is_the_range_by_the_codes(bits: int) -> None:
    """Rounding step and minimum outwards to bfloat16 adds at most 2^-7 of either to the step."""
    x = torch.randn(1000, 64)
    _, step = through_codes(x, bits)
    low, high = x.amin(-1), x.amax(-1)
    steps = (1 << bits) - 1
    assert bool((step * steps >= (high - low) * (1 - 4 * EPS)).all())
    assert bool((step <= ((high - low) + low.abs() / 128) / steps * (1 + 1 / 128)).all())


@each_width
def test_ends_of_a_group_come_back(bits: int) -> None:
    """If they and the step are bfloat16 numbers."""
    x = torch.tensor([0.0, 2.0**bits - 1, *[1.0] * 30])[None]
    assert torch.equal(through_codes(x, bits)[0], x)


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_seen_in_the_gradient(value: float, bits: int) -> None:
    """Its group becomes NaN, as would the gradients computed from it; the other groups do not."""
    x = torch.randn(2, 32)
    x[0, 5] = value
    lost = through_codes(x, bits)[0].isnan()
    assert bool(lost[0].all())
    assert int(lost.sum()) == 32


@pytest.mark.parametrize("bits", [2, 4])
def test_stochastic_rounding_has_the_right_mean(bits: int) -> None:
    """The mean of n is off by at most six standard errors of n values whose spread is at most half a step."""
    torch.manual_seed(0)
    x, count = torch.rand(8, 32), 4000
    decoded, step = through_codes(x.expand(count, 8, 32).contiguous(), bits, "stochastic")
    allowed = 6 * 0.5 * float(step.max()) / count**0.5
    assert float((decoded.double().mean(0) - x).abs().max()) < allowed


@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_float16_stays_finite(bits: int) -> None:
    """The grid of a group may end beyond it."""
    assert through_codes(torch.linspace(-65504, 65504, 4096).half(), bits)[0].isfinite().all()


def test_codes_of_roots_keep_zeros_and_small_numbers() -> None:
    """p between two codes of roots, a step s apart, errs by half of s (2 √p + s / 2) at most."""
    p = torch.softmax(8 * torch.randn(100, 64), -1).where(torch.rand(100, 64) < 0.5, 0)
    back, steps = through_codes(p, 4, of_roots=True)
    step = steps[:, None]
    assert bool((back[p == 0] == 0).all())
    assert bool(((back - p).abs() <= 0.5 * step * (2 * p.sqrt() + step / 2) * (1 + 1e-5)).all())


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
def test_a_tensor_comes_back_in_its_order(x: Tensor) -> None:
    decoded, _ = through_codes(x, 8)
    assert decoded.stride() == x.stride()
    assert (decoded - x).abs().max() <= (x.max() - x.min()) / 2 / 255 * 1.02  # half a step, rounded up to bfloat16


@pytest.mark.parametrize("x", TENSORS.values(), ids=TENSORS)
def test_bools_come_back(x: Tensor) -> None:
    layout = layout_of(x)
    assert isinstance(layout, GroupLayout)
    (packed,) = pack(x > 0, layout.order, False)
    assert torch.equal(unpack(packed, None, x.shape, layout.order), x > 0)
    assert packed.nbytes == coded_bytes(x > 0, Bits(layout))


def test_tensors_with_gaps_have_no_places() -> None:
    assert layout_of(torch.randn(8, 64)[:, ::2]) == "its elements overlap or have gaps"
    assert layout_of(torch.randn(1, 64).expand(8, 64)) == "its elements overlap or have gaps"


@each_width
@pytest.mark.parametrize("x", TENSORS.values(), ids=TENSORS)
def test_bytes_are_those_of_the_codes(x: Tensor, bits: int) -> None:
    layout = layout_of(x)
    assert isinstance(layout, GroupLayout)
    code = encode(x, layout.order, layout.group, bits, False, False, False)
    assert coded_bytes(x, Groups(bits, layout)) == sum(part.nbytes for part in code)


@pytest.mark.parametrize("width", [64, 40])
def test_numbers_of_rows_may_change(width: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.Tanh())
    cut = graphs.partitioner(bits=8)
    run = graphs.compiled(model, cut, dynamic=True)
    for count in (192, 320, 333):
        x = torch.randn(count, width)
        expected = graphs.gradients(model, model, x)
        assert graphs.error(graphs.gradients(model, run, x), expected) < 2.0**-7
    (graph,) = cut.graphs
    assert any(row.form == "8 bits" for row in graph.crossings)
