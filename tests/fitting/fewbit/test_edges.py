"""Extreme functions and domains: each fit has a certificate, or is refused."""

import pytest

from actfit.fitting.activations import from_expression
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.weights import from_samples
from tests.fitting.fewbit.references import GAP, HI, LO, SAW, activation_of, fitted
from tests.tiers import in_ci

FITTED = [
    ("gelu", (1e-8, 2e-8)),
    ("gelu", (3, 9)),
    ("gelu", (-1e6, 1e6)),
    ("1/x", (0.01, 1)),
    ("x*sin(x)", (LO, HI)),
    ("x**20", (LO, HI)),
    ("abs(x)**1.5", (LO, HI)),
    ("x**2.5", (0, 5)),
    ("exp(-1000000*x**2)", (LO, HI)),
    ("x*tanh(100000*x)", (LO, HI)),
    ("x*Phi(x)/10**30", (LO, HI)),
    ("10**30*x*Phi(x)", (LO, HI)),
]


# The hardest of both kinds; the edge matters to f' and its cells, which are the same for both.
BOTH = ("gelu", "x*sin(x)", "x**20", "exp(-1000000*x**2)")
CASES = [(*case, kind) for case in FITTED for kind in ("best", "contiguous")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "domain", "kind"), in_ci(CASES, lambda case: case[2] == "best" or case[0] in BOTH))
def test_edges_are_certified(name, domain, kind):
    error = fitted(name, 3, kind, "uniform", domain).error
    assert 0 < error.lower_bound <= error.l2_squared
    assert error.gap <= GAP


def test_a_far_domain_hides_no_feature():
    """On [-10^6, 10^6] all of selu's bend is in a millionth of the domain; at K = 8 it must be found."""
    far, near = fitted("selu", 3, "best", "uniform", (-1e6, 1e6)), fitted("selu", 3)
    assert len(far.steps.levels) == 8
    # The flat tail takes one level, 0, for itself; the rest is at worst seven levels' work on [-10, 10].
    assert near.error.l2_squared <= far.error.l2_squared <= 1.1 * near.error.l2_squared


# (expression, domain): refused in one line.
REFUSED = [
    ("sqrt(abs(x))", (LO, HI)),
    ("log(x)", (-10, -1)),
    ("1/x", (LO, HI)),
    ("sqrt(x**2 - 1)", (LO, HI)),
    ("exp(x)", (-1000, 1000)),
    ("x*log(x)", (0, 1)),
    ("abs(x)**1.01", (LO, HI)),
    pytest.param("sin(1000*x)", (LO, HI), marks=pytest.mark.slow),
    ("x**2*sin(1/x)", (LO, HI)),
]


@pytest.mark.parametrize(("name", "domain"), REFUSED)
def test_what_cannot_be_fitted_is_refused(name, domain):
    with pytest.raises(InputError, match=r"^(f and f'|f'|expression) .*(domain|position)") as caught:
        fit(from_expression(name), 2, domain=domain)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("domain", [(0.0, 1e-20), (-1e-300, 1e-300), (50.0, 60.0)])
def test_what_float64_cannot_tell_apart_is_one_level(domain):
    """There gelu' rounds to a single float64, and no cell needs to be split."""
    result = fitted("gelu", 3, "best", "uniform", domain)
    assert len(result.steps.levels) == 1
    assert result.error.linf <= 1e-16
    assert result.error.lower_bound <= result.error.l2_squared <= 1e-32 * (domain[1] - domain[0])


def test_samples_on_either_side_of_equally_near_crossings():
    """f' = x, and x - 2 after 0: the crossings of a mid-level at -1.625 and 0.375 are as far from the grid's border."""
    error = fit(
        activation_of(SAW), 1, levels="contiguous", weight=from_samples([0.0, -3.0, -0.5]), domain=(-5, 5)
    ).error
    assert error.l2_squared == pytest.approx(1 / 24, rel=1e-11)  # of -0.5 and 0 about their mean, of three samples
    assert error.gap <= GAP


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["tanh(100000000*x)", "tanh(1000000*x)", "sigmoid(10**9*x)", "x*sigmoid(10**8*x)", "exp(-(10**6*x)**2)"]
)
def test_a_turn_that_float64_cannot_see_is_found(name):
    """f'' is 0 in float64 around it, but balls know its sign. Such an f' was refused as unbounded once."""
    error = fit(from_expression(name), 3).error
    assert 0 < error.lower_bound <= error.l2_squared
    if name.startswith("tanh"):  # f' = a·g(ax) has the levels of g times a, and the squared error times a
        a = float(name[5:-3])
        unscaled = fitted("tanh", 3, "best", "uniform", (-1e4, 1e4)).error
        # Each error is within its gap of the optimum on the line; the domains end where f' is below 1e-300.
        assert error.l2_squared / a == pytest.approx(unscaled.l2_squared, rel=error.gap + unscaled.gap)


@pytest.mark.parametrize("name", ["10**308*x", "10**200*tanh(x)", "x**300"])
def test_squares_beyond_float64_are_refused(name):
    with pytest.raises(InputError, match=r"^f' must be at most 1e\+100 in size.*scale f"):
        fit(from_expression(name), 2)
