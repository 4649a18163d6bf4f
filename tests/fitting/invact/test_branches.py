"""The branches of an activation: T and f(T) to 50 digits, the owner of the border, arcs and anchors, and refusals."""

import math

import mpmath
import numpy as np
import pytest

from actfit.fitting.activations import from_expression, get, names
from actfit.fitting.errors import InputError
from actfit.fitting.invact.branches import split
from tests.fitting.activations.reference_values import FORMULAS

INF = math.inf

# (T, whether T is on the left branch) of functions with two branches.
TWO = {
    "threshold": (0.1, True),
    "hardswish": (-1.5, False),
    "gelu": (-0.7517915246935645, False),
    "gelu_tanh": (-0.7524614220710163, False),
    "quick_gelu": (-0.751154255441289, False),
    "silu": (-1.2784645427610737, False),
    "mish": (-1.1924312145154952, False),
}


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "quick_gelu", "silu", "mish"])
def test_minimum_to_50_digits(name):
    """T and f(T) against mpmath, and as float64 the ones nearest to them."""
    parts, function = split(get(name)), FORMULAS[name]
    with mpmath.workdps(70):
        at = mpmath.findroot(lambda t: mpmath.diff(function, t, h=mpmath.mpf(10) ** -30), TWO[name][0])
        value = function(at)
        left, right = parts.branches[0].arcs[-1], parts.branches[1].arcs[0]
        for anchor in (left.anchors[1], right.anchors[0]):
            assert anchor.order == 2
            assert abs(mpmath.mpf(anchor.x.mid().str(60, radius=False)) - at) < mpmath.mpf(10) ** -50
            assert abs(mpmath.mpf(anchor.y.mid().str(60, radius=False)) - value) < mpmath.mpf(10) ** -50
        assert left.anchors[0] is None is right.anchors[1]
        assert left.range[0] == right.range[0] == nearest(value)
        assert parts.border == left.hi == right.lo == nearest(at)


def nearest(number):
    """The float64 nearest to an mpf."""
    guess = float(number)
    return min(
        (guess, float(np.nextafter(guess, -INF)), float(np.nextafter(guess, INF))), key=lambda y: abs(number - y)
    )


@pytest.mark.parametrize("name", names())
def test_branches_of_the_catalogue(name):
    parts = split(get(name))
    if name in TWO:
        assert (parts.border, parts.border_is_left) == TWO[name]
        left, right = parts.branches
        assert (left.lo, left.hi, right.lo, right.hi) == (-INF, parts.border, parts.border, INF)
        assert (left.direction, right.direction) == (0 if name == "threshold" else -1, 1)
        assert right.range[1] == INF
    else:
        assert parts.border is None
        (branch,) = parts.branches
        assert (branch.lo, branch.hi, branch.direction) == (-INF, INF, 1)
        limits = get(name).limits
        assert branch.range == (limits.left, limits.right)
    assert not any(math.copysign(1, end) < 0 for branch in parts.branches for end in branch.range if end == 0)


@pytest.mark.parametrize("name", names())
def test_arcs_cover_their_branch_and_stay_in_one_piece(name):
    activation = get(name)
    for branch in split(activation).branches:
        edges = [branch.arcs[0].lo, *(arc.hi for arc in branch.arcs)]
        assert edges == sorted(set(edges))
        assert (edges[0], edges[-1]) == (branch.lo, branch.hi)
        for arc in branch.arcs:
            assert arc.piece.lo <= arc.lo < arc.hi <= arc.piece.hi
            assert np.sign(arc.y[1] - arc.y[0]) == arc.direction
            assert arc.direction in (0, branch.direction)
            points = np.clip(np.linspace(-20, 20, 101), arc.lo, arc.hi)
            points = points[(points > arc.lo) & (points < arc.hi)]
            assert np.all(np.abs(np.sign(activation.df(points)) - arc.direction) <= (np.abs(points) > 8))
            assert np.all((arc.range[0] <= activation.f(points)) & (activation.f(points) <= arc.range[1]))


@pytest.mark.parametrize(
    ("name", "params", "border", "is_left", "directions", "ranges"),
    [
        ("elu", {"alpha": -1.0}, 0.0, True, (-1, 1), [(0, 1), (0, INF)]),
        ("elu", {"alpha": 0.0}, None, False, (1,), [(0, INF)]),
        ("leaky_relu", {"negative_slope": -0.3}, 0.0, True, (-1, 1), [(0, INF), (0, INF)]),
        ("threshold", {"threshold": 1.3, "value": -7.1}, None, False, (1,), [(-7.1, INF)]),
        ("threshold", {"threshold": -0.7, "value": 3.0}, -0.7, True, (0, 1), [(3, 3), (-0.7, INF)]),
    ],
)
def test_branches_by_parameters(name, params, border, is_left, directions, ranges):
    parts = split(get(name, **params))
    assert (parts.border, parts.border_is_left) == (border, is_left)
    assert tuple(branch.direction for branch in parts.branches) == directions
    assert [branch.range for branch in parts.branches] == ranges


@pytest.mark.parametrize(
    ("text", "border", "is_left", "directions"),
    [
        ("x**2", 0.0, False, (-1, 1)),
        ("abs(x-2)", 2.0, False, (-1, 1)),
        ("where(x>0, x, -x)", 0.0, True, (-1, 1)),
        ("where(x>=0, x, -x)", 0.0, False, (-1, 1)),
        ("-x*sigmoid(x)", -1.2784645427610737, False, (1, -1)),
        ("sech(x)", 0.0, False, (1, -1)),
        # Down by a jump.
        ("where(x>1, x-1, x)", 1.0, True, (1, 1)),
        ("where(x>=1, x-1, x)", 1.0, False, (1, 1)),
        ("-x", None, False, (-1,)),
        ("where(x>0, 1, 0)", None, False, (0,)),
        # Float64 gives exp(-0.3) and its derivative another rounding than arb does: the owner is found all the same.
        ("where(x>0.3, x, exp(-x)*sqrt(3)/7)", 0.3, True, (-1, 1)),
        ("where(x>=0.3, sinh(x)*sqrt(3)/7, -x)", 0.3, False, (-1, 1)),
    ],
)
def test_branches_of_expressions(text, border, is_left, directions):
    parts = split(from_expression(text))
    assert (parts.border, parts.border_is_left) == (border, is_left)
    assert tuple(branch.direction for branch in parts.branches) == directions


@pytest.mark.parametrize(
    ("text", "orders"),
    [
        ("x**2", [(None, 2), (2, None)]),
        ("x**3", [(None, 3), (3, None)]),
        ("x**4", [(None, 4), (4, None)]),
        ("x - tanh(x)", [(None, 3), (3, None)]),
        ("where(x>0, x**2, 0)", [(None, None), (2, None)]),
        ("where(x>0, x**3, x)", [(None, None), (3, None)]),
        ("x*abs(x)", [(None, 2), (2, None)]),
        ("x", [(None, None)]),
        # A horizontal tangent inside a branch, away from its ends.
        ("(x - 1)**3*(x**2 + 1)", [(None, 3), (3, None)]),
        ("x*sigmoid(x)", [(None, 2), (2, None)]),
    ],
)
def test_anchors(text, orders):
    """At both ends of each arc, the order of contact with the horizontal: y - f(T) begins with (x - T)**order."""
    arcs = [arc for branch in split(from_expression(text)).branches for arc in branch.arcs]
    assert [tuple(anchor and anchor.order for anchor in arc.anchors) for arc in arcs] == orders


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "sin(x)",
            "custom must be defined everywhere and have limits at -inf and +inf that sympy finds;"
            " actfit fewbit fits others",
        ),
        (
            "x**3 - x",
            "custom must have at most two monotone branches, for one bit to tell them apart, got 3; "
            "actfit fewbit fits it",
        ),
        ("x**11", "f' must not vanish to an order above 7, as it does at x = 0"),
    ],
)
def test_refusals(text, message):
    with pytest.raises(InputError) as caught:
        split(from_expression(text))
    assert str(caught.value) == message


def test_values_that_are_zero_are_zero():
    """1/2 - 3/6 in balls of 200 bits is 3e-61."""
    (branch,) = split(get("hardsigmoid")).branches
    assert [arc.range for arc in branch.arcs] == [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
