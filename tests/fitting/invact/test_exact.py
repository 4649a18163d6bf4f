"""g(y) = f'(f⁻¹(y)) in float64 against the 50-digit oracle: near T, in the tails, at the ends, beyond them."""

import math

import mpmath
import numpy as np
import pytest

from actfit.fitting.activations import get, names, oracle
from actfit.fitting.activations.activation import Branch
from actfit.fitting.invact.branches import split
from actfit.fitting.invact.exact import anchored, derivative_from_output, series, two_floats
from tests.fitting.agreement import EPS, assert_agree

INF = math.inf
SMOOTH = [name for name in names() if get(name).step_values is None]
TWO_SIDED = ["gelu", "gelu_tanh", "quick_gelu", "silu", "mish"]


def exact_g(activation, branch, y):
    """g; f''/f', which is what g changes by for each unit of y; and f''·x, what it changes by for a fraction of x."""
    part, rows = Branch(branch.lo, branch.hi, branch.direction), []
    for output in y:
        x = oracle.inverse(activation, float(output), part)
        piece = next(piece for piece in activation.pieces if piece.lo <= x <= piece.hi)
        with mpmath.workdps(oracle.DIGITS):
            g, bend = oracle.df(activation, x), piece.d2.mp(x)
            rows.append((g, abs(bend / g), abs(bend * x)))
    return np.array(rows, dtype=np.float64).T


def allowed(activation, branch, y, g, by_output, by_input):
    """How far g may be off at each y, a float64 that is taken as exact.

    4 ulp of max(1, |g|) for evaluating f' or the series. Newton's x is where float64's f is y: f is x times a gate,
    good to 2 ulp of y between them. Not so gelu_tanh's: half of 1 + tanh is only good to an ulp of 1, so that f is
    off by |x| ulp, |x| < 9 where it is felt. Next to T, where f''/f' grows without bound, none of this counts: y is
    measured from f(T) there and f is not evaluated. And x is rounded, as is the gate's argument b·x, once for f and
    once for f': half an ulp of x each, 2 ulp with all of them.
    """
    off = 2 * np.abs(y)
    if activation.name == "gelu_tanh":
        off = np.maximum(off, 9.0)
    for anchor in (anchor for arc in branch.arcs for anchor in arc.anchors if anchor is not None):
        off = np.where(np.abs(y - float(anchor.y)) <= 0.1 * abs(float(anchor.y)), 0.0, off)
    return EPS * (4 * np.maximum(1.0, np.abs(g)) + off * by_output + 2 * by_input)


def agree(activation, branch, x):
    """At the outputs, strictly inside the branch's range, of those x that lie on the branch."""
    y = np.unique(activation.f(x[(branch.lo < x) & (x < branch.hi)]))
    y = y[(branch.range[0] < y) & (y < branch.range[1])]
    if y.size:
        expected = exact_g(activation, branch, y)
        assert_agree(y, derivative_from_output(branch, y), expected[0], atol=allowed(activation, branch, y, *expected))
    return y.size


def sloping(activation):
    return [branch for branch in split(activation).branches if branch.direction]


@pytest.mark.parametrize("name", SMOOTH)
def test_catalogue(name):
    """At random x, in both tails, and from 1e-9 up beside every end of an arc (T, kinks)."""
    activation, rng = get(name), np.random.default_rng(3)
    for branch in sloping(activation):
        ends = [end for arc in branch.arcs for end in (arc.lo, arc.hi) if math.isfinite(end)]
        beside = [end + sign * 10.0**power for end in ends for sign in (-1, 1) for power in (-9, -7, -4.5, -2, -0.7)]
        x = np.concatenate([rng.uniform(-6, 6, 9), beside, [-300.0, -25.0, -9.0, 9.0, 25.0, 300.0]])
        assert agree(activation, branch, x) >= 5


@pytest.mark.parametrize("name", ["gelu_tanh", "gelu", "silu"])
def test_left_tail(name):
    """On the way to 0 from below g goes there too, nowhere above 0; gelu_tanh's f is 0 itself from x = -8.3 on."""
    left = split(get(name)).branches[0]
    y = -np.geomspace(1e-2, 5e-324, 200)
    g = derivative_from_output(left, y)
    # |g| <= 40 |y| while y is normal: f'/f = 1/x + σ(-x)-like terms, below |x| + 1, and |x| < 39 for GELU
    bound = 40 * np.abs(y) if name == "gelu" else 800 * np.abs(y)
    # what f's rounding adds: that of gelu_tanh see `allowed`, else nothing but underflow
    bound += 9 * 9 * EPS if name == "gelu_tanh" else 1e-300
    assert np.all(g <= 0)
    assert np.all(-g <= bound)


# Ends.


@pytest.mark.parametrize("name", TWO_SIDED)
def test_below_the_minimum_is_zero(name):
    """f(T) rounded up lies above the true minimum, where g is still what it is; below it g is 0, and all the way."""
    for branch in split(get(name)).branches:
        bottom = branch.range[0]
        at = np.array([bottom, np.nextafter(bottom, -INF), bottom * (1 + 1e-7), bottom - 1, -1e308, -INF])
        g = derivative_from_output(branch, at)
        assert np.all(g[1:] == 0)
        # g ~ ±√(2 f''(T) (y - f(T))) with y - f(T) below half an ulp, 2.8e-17, and f''(T) < 1.2
        assert abs(g[0]) <= math.sqrt(2 * 1.2 * 2.8e-17)
        assert g[0] * branch.direction >= 0


@pytest.mark.parametrize("name", names())
def test_nan_stays_and_nothing_else_becomes_it(name):
    extreme = np.array([0.0, -0.0, 5e-324, -5e-324, 1e-300, -1e-300, 1e300, -1e300, 1.7e308, -1.7e308, INF, -INF])
    for branch in split(get(name)).branches:
        inside = np.linspace(*np.clip(branch.range, -30, 30), 400)
        at = np.concatenate([extreme, inside, np.nextafter(branch.range, INF), np.nextafter(branch.range, -INF)])
        assert not np.isnan(derivative_from_output(branch, at)).any()
        g = derivative_from_output(branch, np.array([math.nan, inside[5], math.nan]))
        assert np.isnan(g).tolist() == [True, False, True]
        assert g[1] == derivative_from_output(branch, inside[5:6])[0]


@pytest.mark.parametrize("name", names())
def test_beyond_the_range_is_the_value_at_the_end(name):
    for branch in split(get(name)).branches:
        for end, beyond in zip(branch.range, (-INF, INF), strict=True):
            if math.isfinite(end) and end not in [float(a.y) for arc in branch.arcs for a in arc.anchors if a]:
                outside = np.array([np.nextafter(end, beyond), end + math.copysign(0.7, beyond), beyond])
                assert np.all(derivative_from_output(branch, outside) == derivative_from_output(branch, np.array(end)))


def test_limits_at_the_ends():
    """Outputs that are only approached, and the infinite ones."""
    for name, low, high in [
        ("sigmoid", 0, 0),
        ("tanh", 0, 0),
        ("softplus", 0, 1),
        ("tanhshrink", 1, 1),
        ("relu2", 0, INF),
        ("hardshrink", 1, 1),
    ]:
        (branch,) = split(get(name)).branches
        assert derivative_from_output(branch, np.array(branch.range)).tolist() == [low, high]


@pytest.mark.parametrize(
    ("name", "params", "index", "y", "expected"),
    [
        ("hardswish", {}, 1, 3.0, 1.0),  # x = 3 is the identity's
        ("hardswish", {}, 1, np.nextafter(3.0, 0), 1.5),
        ("hardswish", {}, 0, -0.0, 0.0),  # x <= -3 is flat, and its y = 0
        ("hardswish", {}, 0, -5e-324, -0.5),
        ("elu", {"alpha": 0.5}, 0, 0.0, 0.5),  # x = 0 is the exponential's
        ("elu", {"alpha": 0.5}, 0, 5e-324, 1.0),
        ("relu", {}, 0, 0.0, 0.0),
        ("relu", {}, 0, 5e-324, 1.0),
        ("relu6", {}, 0, 6.0, 0.0),
        ("tanhshrink", {}, 0, 0.0, 0.0),
        # f jumps over (0, 1/2) and (-1/2, 0): the nearest output decides
        ("hardshrink", {}, 0, 0.2, 0.0),
        ("hardshrink", {}, 0, 0.3, 1.0),
        ("threshold", {}, 0, 20.0, 0.0),
        ("threshold", {}, 1, 20.0, 1.0),
    ],
)
def test_kinks_and_gaps(name, params, index, y, expected):
    # 2 ulp: a value beside a kink comes from a root, the others are exact
    got = derivative_from_output(split(get(name, **params)).branches[index], np.array(y))
    assert abs(got - expected) <= 2 * EPS * abs(expected)


def test_shapes():
    branch = split(get("gelu")).branches[1]
    y = np.linspace(-0.2, 3, 24)
    flat = derivative_from_output(branch, y)
    assert np.array_equal(derivative_from_output(branch, y.reshape(2, 3, 4)), flat.reshape(2, 3, 4))
    assert np.array_equal(derivative_from_output(branch, y.reshape(4, 6).T), flat.reshape(4, 6).T)
    for empty in [(0,), (3, 0)]:
        assert derivative_from_output(branch, np.empty(empty)).shape == empty
    scalar = derivative_from_output(branch, np.array(1.0))
    assert (scalar.shape, scalar.dtype) == ((), np.float64)
    assert derivative_from_output(branch, 1.0) == derivative_from_output(branch, [1])[0] == scalar


# The series.


@pytest.mark.parametrize("name", [*TWO_SIDED, "hardswish", "tanhshrink", "relu2"])
def test_series_begins_right_and_serves_to_its_radius(name):
    """g = ±√(2 f''(T)) s + ...; at the radius it meets the oracle, and its last terms are beyond reach of float64."""
    activation = get(name)
    count = 0
    for branch in split(activation).branches:
        for arc in branch.arcs:
            for end, anchor in enumerate(arc.anchors):
                if anchor is None:
                    continue
                count += 1
                coefficients, radius = series(arc, end)
                order, inward = anchor.order, 1 if end == 0 else -1
                # f(T + d) - f(T) = a dⁿ: f' = n a dⁿ⁻¹ = n |a|^(1/n) sⁿ⁻¹, its sign that of the direction
                a = {2: float(arc.piece.d2.arb(anchor.x)) / 2, 3: 1 / 3}[order]
                assert not coefficients[: order - 1].any()
                assert coefficients[order - 1] == pytest.approx(
                    arc.direction * order * abs(a) ** (1 / order), rel=1e-14
                )
                longest = abs(arc.y[1 - end] - float(anchor.y)) ** (1 / order)
                assert 0.05 < radius <= longest * (1 + EPS)
                size = np.abs(coefficients) * radius ** np.arange(len(coefficients))
                assert size[-8:].max() <= 1.0001e-18 * abs(coefficients[order - 1]) * radius ** (order - 1)
                s = 0.999 * radius
                y = np.array([float(anchor.y) + (1 if arc.range[1] > float(anchor.y) else -1) * s**order])
                x = float(oracle.inverse(activation, float(y[0]), Branch(arc.lo, arc.hi, arc.direction)))
                assert (x - float(anchor.x)) * inward > 0
                expected = exact_g(activation, branch, y)[0]
                s = anchored(arc, anchor, y)
                # s is good to 2 ulp, and |g'(s) s| below 4 max(1, |g|) inside half the radius of convergence
                atol = 12 * EPS * np.maximum(1, np.abs(expected))
                assert_agree(y, np.polynomial.polynomial.polyval(s, coefficients), expected, atol=atol)
    assert count


def test_distance_from_the_minimum_keeps_its_digits():
    """y - f(T) next to f(T), to an ulp: against 50 digits. A plain difference would be off by half its size."""
    for branch in split(get("gelu")).branches:
        arc = branch.arcs[-1] if branch.direction < 0 else branch.arcs[0]
        anchor = next(anchor for anchor in arc.anchors if anchor)
        y = np.array([branch.range[0]])
        for _ in range(5):
            y = np.append(y, np.nextafter(y[-1], INF))
        with mpmath.workdps(50):
            exact = [mpmath.mpf(float(output)) - mpmath.mpf(anchor.y.str(45, radius=False)) for output in y]
            expected = np.array([float(mpmath.sqrt(distance)) for distance in exact])
        # The second float64 of f(T) carries 53 more bits; 1e-13 leaves it 10 of them to lose.
        assert_agree(y, anchored(arc, anchor, y), expected, rtol=1e-13)
        high, low = two_floats(anchor.y)
        assert high == branch.range[0]
        assert 0 < abs(low) <= np.spacing(abs(high)) / 2
