"""The information floor against what is known, brute force and every rival."""

import math
from collections import defaultdict
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import norm

from actfit.fitting.activations import from_expression, get
from actfit.fitting.invact.branches import split
from actfit.fitting.invact.error_floor import information_floor
from actfit.fitting.invact.formats import FORMATS, Format
from actfit.fitting.invact.inputs import on_right
from actfit.fitting.weights import from_samples, parse_weight, uniform

INF = math.inf
TORCH = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
SIXTEEN = ("bfloat16", "float16")
NORMAL = parse_weight("norm")


@cache
def floor_of(name, dtype):
    return information_floor(get(name), dtype, NORMAL)


@pytest.mark.parametrize(
    ("name", "dtype", "linf", "rms", "last"),
    [
        ("gelu", "bfloat16", "1.06e-2", "1.41e-3", 1),
        ("silu", "bfloat16", "1.14e-2", "1.51e-3", 1),
        ("silu", "float16", "3.8e-3", "3.13e-4", 1),
        # 3.75e-4 is 0.45 % above what every way of weighing all inputs gives (3.73e-4, see the test below);
        # a million normal draws give 3.724e-4 to 3.750e-4, as few of them meet T: two units of its last digit.
        ("gelu", "float16", "4.8e-3", "3.75e-4", 2),
    ],
)
def test_facts_to_their_printed_digits(name, dtype, linf, rms, last):
    """Rounding to the printed digits, half a unit of the last, is all that may lie between; `last` units more."""
    floor = floor_of(name, dtype)
    for value, printed in [(floor.linf, linf), (floor.rms, rms)]:
        digits, exponent = printed.split("e")
        unit = 10.0 ** (int(exponent) - len(digits.partition(".")[2]))
        assert abs(value - float(printed)) <= (unit / 2 if printed == linf or last == 1 else last * unit)
    assert abs(floor.linf_at - floor.split.branches[0].range[0]) <= floor.format.spacing(np.array(floor.linf_at))


def test_rounding_of_the_derivative():
    """Rounding GELU' itself to bfloat16 costs 1.29e-3. Half an ulp below 2 at most, and that is met."""
    floor = floor_of("gelu", "bfloat16")
    assert floor.rounding_rms == pytest.approx(1.29e-3, abs=0.005e-3)
    assert 0.99 * 2**-8 <= floor.rounding_linf <= 2**-8


def test_the_bit_is_the_one_of_the_border():
    """x >= T; x > border where the border is on the left branch; no bit where there is one branch."""
    at = np.array([-1e-300, -0.0, 0.0, 1e-300])
    assert on_right(split(get("elu", alpha=-1.0)), at).tolist() == [False, False, False, True]
    assert on_right(split(from_expression("x**2")), at).tolist() == [False, True, True, True]
    assert on_right(split(get("tanh")), at).tolist() == [False] * 4


def brute(activation, form, weigh, bits=1):
    """The floor over a dictionary of every y and its bits: plain Python on every number of the format."""
    parts, groups = split(activation), defaultdict(list)
    for x in form.numbers().tolist():
        exact, derivative = float(activation.f(x)), float(activation.df(x))
        y = float(form.round(exact))
        if math.isfinite(y) and math.isfinite(derivative):
            away = bits == 2 and abs(exact) < abs(y)  # whether y was rounded away from zero
            groups[y, bool(on_right(parts, np.array(x))), away].append((weigh(x), derivative))
    total = sum(mass for group in groups.values() for mass, _ in group)
    square, worst, worst_at = 0.0, 0.0, 0.0
    for (y, *_), group in groups.items():
        mass = sum(mass for mass, _ in group)
        if mass:
            mean = sum(mass * derivative for mass, derivative in group) / mass
            square += sum(mass * (derivative - mean) ** 2 for mass, derivative in group)
        half = (max(derivative for _, derivative in group) - min(derivative for _, derivative in group)) / 2
        if half > worst:
            worst, worst_at = half, y
    return math.sqrt(square / total), worst, worst_at


TINY = Format("tiny", 5, -6, 5)  # 5 bits: 382 numbers up to 31


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        *product(("x*sigmoid(x)", "x**2", "2*x*Phi(-x)"), (1, 2)),
        *(("x**4/8 + x", 2), ("tanh(x)", 1), ("where(x > 0, x, 0)", 1), ("x**3/9", 1)),
    ],
)
def test_brute_force_on_a_small_format(text, bits, monkeypatch):
    """Uniform and N(0, 1); a cell's width is the mean distance to its neighbours, at the ends to the one there is."""
    monkeypatch.setitem(FORMATS, "tiny", TINY)
    activation, numbers = from_expression(text), TINY.numbers()
    assert len(numbers) == 2 * (11 * 16 + 15) + 1
    steps = np.diff(numbers)
    width = dict(zip(numbers.tolist(), (np.r_[steps[0], steps] + np.r_[steps, steps[-1]]) / 2, strict=True))
    for weight, density in [(uniform(), lambda x: float(-10 <= x <= 10)), (NORMAL, norm.pdf)]:
        floor = information_floor(activation, "tiny", weight, bits=bits)
        rms, linf, at = brute(activation, TINY, lambda x, d=density: d(x) * width[x], bits)
        assert floor.linf == pytest.approx(linf, rel=1e-14)
        if linf and bits == 1:
            assert floor.linf_at == at or brute(activation, TINY, lambda x: 1.0)[1] == pytest.approx(linf)
        assert floor.rms == pytest.approx(rms, rel=1e-11, abs=1e-15)  # a weight's domain leaves out 1e-12 each side
        assert sum(float(cells.mass.sum()) for cells in floor.cells) == pytest.approx(1, rel=1e-13)


def test_samples_weigh_as_often_as_they_occur():
    """Three draws that share one y, one alone: mean and variance by hand. Unrounded draws count where they round."""
    form, activation = FORMATS["bfloat16"], get("silu")
    cells = floor_of("silu", "bfloat16").cells[0]
    y = cells.y[np.argmax(cells.half)]
    x = form.numbers()
    sharing = x[(form.round(activation.f(x)) == y) & (x < -1.2784645427610738)][[0, 3, 9]]
    draws = np.concatenate([sharing, sharing[:1], [2.0]])
    derivatives = activation.df(draws)[:-1]
    expected = math.sqrt(np.sum((derivatives - derivatives.mean()) ** 2) / 5)
    for wobble in (0.0, 1e-4, -1e-4):
        floor = information_floor(activation, "bfloat16", from_samples(draws * (1 + wobble)))
        assert floor.rms == pytest.approx(expected, rel=1e-12)
        assert [float(of_branch.mass.sum()) for of_branch in floor.cells] == pytest.approx([0.8, 0.2])
        assert floor.linf == floor_of("silu", "bfloat16").linf  # which no weight changes
    alone = information_floor(activation, "bfloat16", from_samples(np.array([-2.0, 1.0, 3.0])))
    assert alone.rms == 0


def test_float32_samples_count_on_their_own_branch():
    """200,000 quantiles of N(0, 1) are as good as its density, away from the few at T that carry the RMS."""
    quantiles = norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    floor = information_floor(get("silu"), "float32", from_samples(quantiles))
    left = float(norm.cdf(-1.2784645427610738))
    assert [float(of_branch.mass.sum()) for of_branch in floor.cells] == pytest.approx([left, 1 - left], abs=1e-5)
    # The square of the error is like 1/distance² from T, so half of it comes from |x - T| < 1e-3: 35 of them.
    assert floor.rms == pytest.approx(floor_of("silu", "float32").rms, rel=0.5)
    above = information_floor(get("silu"), "float32", from_samples(np.linspace(1, 4, 3000)))
    assert [float(of_branch.mass.sum()) for of_branch in above.cells] == [0, 1]
    assert above.rms < 3e-8  # f'' < 0.1 and f' > 0.9 there: half an ulp of y < 4 is 1.2e-7, and moves g by 0.1 of it


@pytest.mark.parametrize("name", ["gelu", "silu", "mish"])
def test_float32_analysis_against_every_input_next_to_the_minimum(name):
    """All float32 x in [T - 4e-3, T + 4e-3], 67,000 of them and more, on 50 y and more.

    The analysis has only a sample of y, and half-ranges that fall with the distance from T, but for the first y's,
    part of whose interval is below f(T): that of a y lies between those of its two neighbours in the sample.
    1e-12: |dg/dy| < 1e4 beyond the first y, times an ulp of f.
    From below to a tenth: a y stands for 45 x and more, and the outermost two may be short of its ends by one step.
    """
    activation, form = get(name), FORMATS["float32"]
    floor = floor_of(name, "float32")
    border = floor.split.border
    count = int(4e-3 / form.spacing(np.array(border)))
    x = np.float32(border).astype(np.float64) + form.spacing(np.array(border)) * np.arange(-count, count)
    assert x.size > 67_000
    assert np.array_equal(form.round(x), x)
    y, derivative, right = form.round(activation.f(x)), activation.df(x), x >= border
    for branch, cells in zip((False, True), floor.cells, strict=True):
        on_branch = right == branch
        ys, group = np.unique(y[on_branch], return_inverse=True)
        assert ys.size > 50
        low, high = np.full(ys.size, INF), np.full(ys.size, -INF)
        np.minimum.at(low, group, derivative[on_branch])
        np.maximum.at(high, group, derivative[on_branch])
        half, ys = ((high - low) / 2)[:-1], ys[:-1]  # the last y's inputs are cut by the window
        variance = np.array([derivative[on_branch][group == i].var() for i in range(ys.size)])
        assert ys[0] == cells.y[0]
        below = np.searchsorted(cells.y, ys, side="right") - 1
        above = np.searchsorted(cells.y, ys)
        assert below[1] >= above[1]  # the first two are in the sample
        assert np.all(half <= cells.half[below] + 1e-12)
        assert np.all(half >= 0.9 * cells.half[above])
        assert cells.half.max() == cells.half[above[:2]].max()
        # f' is all but linear over one y's inputs, so spread evenly: the same squared, and 45 x may be 46 (4.5 %)
        assert np.all(variance <= 1.1 * cells.spread[below])
        assert np.all(variance >= 0.8 * cells.spread[above])


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "relu6", "hardtanh", "hardsigmoid", "softshrink", "threshold"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_piecewise_linear_functions_have_no_floor(name, dtype):
    """Every stored y has one f': none of these rounds to the y of a kink from its other side, 1 - 1/384 included,
    which is hardsigmoid's y at bfloat16's last x before 3."""
    floor = floor_of(name, dtype)
    assert floor.linf == 0
    assert floor.rms <= 2.0**-52  # equal numbers about their mean, which is rounded


def test_a_step_inside_a_stored_output_costs_half_of_it():
    """bfloat16's last x before 8 is 8 - 1/32: x/16 + 1/2 = 1 - 1/512, a tie that goes to 1, which is x = 8's."""
    flat = from_expression("Piecewise((0, x <= -8), (1, x >= 8), (x/16 + 1/2, True))")
    floor = information_floor(flat, "bfloat16", NORMAL)
    assert (floor.linf, floor.linf_at) == (1 / 32, 1.0)
