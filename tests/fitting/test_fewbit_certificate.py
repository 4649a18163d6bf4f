"""The lower bound is never above what any function reaches, and the answer is never wrong without saying so."""

import itertools
import math

import flint
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fitting.activations import calculus, from_expression, get
from fitting.activations.tape import Tape
from fitting.errors import InputError
from fitting.fewbit import judge, scan
from fitting.fewbit.certificate import _variation, lower_bound
from fitting.fewbit.curve import Curve
from fitting.fewbit.measure import GOLDEN, Measure
from fitting.fewbit.search import TARGET_GAP, grid_optimum
from fitting.fewbit.solve import _check_agreement, _task, fit
from fitting.weights import from_callable, from_samples, parse_weight, uniform
from tests.fitting.plainly import HI, LO, SLOPES, activation_of, allowance, dense_error, fitted, grid, lloyd, nearest

GAP = 1e-3
N = 100_000  # points of the dense grid
STARTS = 60


def bound_on(name, cells_to_spare, k, shared, weight=None, domain=(LO, HI)):
    """(bound, optimum on the grid) on fresh cells, as coarse as asked for."""
    measure = Measure(activation_of(name), weight or uniform(), domain)
    cells = measure.cells(cells_to_spare * measure.mass * measure.span)
    _, cost, slack = grid_optimum(measure, cells, k, shared)
    bound, gain = lower_bound(measure, cells, k, cost, slack, shared)
    assert gain >= 0
    return bound, math.fsum(cells.moments.spread) + cost


SAW = "where(x < 0, x*x/2, x*x/2 - 2*x)"  # f' = x, and x - 2 after a leap down at 0
CURVES = ["gelu", "selu", "hardswish", "tanh", "relu2", "x*sin(x)", SAW]


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "contiguous"])
@pytest.mark.parametrize("name", CURVES)
def test_the_bound_holds_on_coarse_cells_too(name, shared):
    """Where cells are coarse their optimum lies above the true one, and only what is subtracted saves the bound."""
    needed = False
    for bits in (1, 2, 3):
        reached = fitted(name, bits, "shared" if shared else "contiguous").error.l2_squared
        last = 0.0
        for to_spare in (1e-2, 1e-3, 1e-4, 1e-5):
            bound, on_grid = bound_on(name, to_spare, 2**bits, shared)
            assert bound <= reached
            assert on_grid >= reached * (1 - GAP)
            needed |= on_grid > reached * (1 + GAP)
            last = max(last, bound)
        assert last > 0.4 * reached
    assert needed


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "contiguous"])
@pytest.mark.parametrize("name", ["gelu", "selu", SAW])
def test_finer_cells_are_never_worse(name, shared):
    """Nested cells: what is constant on the coarse ones is so on the fine ones."""
    measure = Measure(activation_of(name), uniform(), (LO, HI))
    last = math.inf
    for to_spare in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        cells = measure.cells(to_spare * measure.mass * measure.span)
        _, cost, slack = grid_optimum(measure, cells, 5, shared)
        total = math.fsum(cells.moments.spread) + cost
        assert total <= last + 2 * slack + 2 * math.fsum(cells.doubt)
        last = total


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.floats(0.01, 1)), min_size=1, max_size=12),
    st.lists(st.floats(-3, 3), min_size=1, max_size=6, unique=True),
)
def test_the_lemma(atoms, levels):
    values, masses = np.array(atoms).T
    levels = np.sort(levels)
    squares = (values[:, None] - levels) ** 2
    mean = np.average(values, weights=masses)
    spare = math.sqrt(masses.sum() * (masses * (values - mean) ** 2).sum())
    middles = (levels[1:] + levels[:-1]) / 2
    inside = (values.min() <= middles) & (middles <= values.max())
    single = (masses @ squares).min()
    assert single <= masses @ squares.min(axis=1) + (np.diff(levels)[inside].sum()) * spare + 1e-12


def best_of_all(values, masses, k):
    """The least cost of at most k runs of neighbours, by looking at every partition."""

    def cost(a, b):
        mean = np.average(values[a:b], weights=masses[a:b])
        return float((masses[a:b] * (values[a:b] - mean) ** 2).sum())

    n = len(values)
    return min(
        sum(cost(a, b) for a, b in itertools.pairwise((0, *cuts, n)))
        for pieces in range(1, min(k, n) + 1)
        for cuts in itertools.combinations(range(1, n), pieces - 1)
    )


NEAR = st.floats(-4, 4).map(lambda x: round(x, 2))


@settings(max_examples=40)
@given(st.lists(NEAR, min_size=1, max_size=9), st.sampled_from(["gelu", "selu", "tanh", SAW]), st.integers(1, 2))
def test_few_samples_against_every_partition(samples, name, bits):
    points, counts = np.unique(samples, return_counts=True)
    masses = counts / counts.sum()
    values = {"gelu": SLOPES["gelu"], "selu": SLOPES["selu"], "tanh": SLOPES["tanh"], SAW: lambda x: x - 2 * (x > 0)}
    slopes = values[name](points)
    order = np.argsort(slopes, kind="stable")
    rounding = 1e-14  # of means and squares below 16
    for kind, best in [
        ("shared", best_of_all(slopes[order], masses[order], 2**bits)),
        ("contiguous", best_of_all(slopes, masses, 2**bits)),
    ]:
        error = fit(activation_of(name), bits, levels=kind, weight=from_samples(samples), domain=(-5, 5)).error
        assert error.lower_bound <= best + rounding
        # Between samples nothing decides where a border lies, but which samples it parts does.
        assert error.l2_squared == pytest.approx(best, rel=GAP, abs=rounding)
        coarse, _ = bound_on(name, 1.0, 2**bits, kind == "shared", from_samples(samples), (-5, 5))
        assert coarse <= best + rounding


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(SLOPES)),
    st.integers(1, 3),
    st.floats(-7, 0),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_no_function_is_below_the_bound(name, bits, decades, seed, shared):
    """Random ones, from wild to a hair's breadth from the optimum, by a midpoint rule of 100,000 points."""
    result = fitted(name, bits, "shared" if shared else "contiguous")
    rng = np.random.default_rng(seed)
    x, h = grid(N)
    values = SLOPES[name](x)
    noise = 10.0**decades
    levels = result.steps.levels + noise * rng.normal(size=len(result.steps.levels))
    if shared:
        codes, levels = nearest(values, levels)
    else:
        borders = result.steps.borders + noise * rng.normal(size=len(result.steps.borders))
        # Borders go to ends of cells, where the midpoint rule does not see them.
        codes = result.steps.codes[np.searchsorted(np.sort(np.round((borders - LO) / h)), np.arange(N), side="right")]
    error = dense_error(values, levels[codes], h)
    assert error >= result.error.lower_bound - allowance(N, np.abs(levels).max())


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("name", ["gelu", "mish", "selu", "tanh"])
def test_lloyd_never_beats_it(name, bits):
    """From many starts: random values of f', some far out, and the optimum itself."""
    error = fitted(name, bits).error
    x, h = grid(20_000)
    values = SLOPES[name](x)
    rng = np.random.default_rng(bits)
    starts = [rng.choice(values, 2**bits, replace=False) for _ in range(STARTS // 2)]
    starts += [rng.uniform(values.min(), values.max(), 2**bits) for _ in range(STARTS // 2)]
    reached = [lloyd(values, start, h)[1] for start in [*starts, fitted(name, bits).steps.levels]]
    assert min(reached) >= error.lower_bound - allowance(20_000, 2.0)
    assert min(reached) >= error.l2_squared - allowance(20_000, 2.0)
    assert reached[-1] <= error.l2_squared + allowance(20_000, 2.0)  # the start that is right stays so


@pytest.mark.parametrize(
    ("name", "domain", "variation"),
    [
        ("gelu", (-10, 10), 1 + 8 * 0.06452),  # 0, down by 0.1289, up to 1.1289, back to 1
        (SAW, (-2, 2), 2 + 2 + 2),
        ("x*x/2", (-1, 3), 4),
        ("where(x < 0, x, where(x < 1, -x, x))", (-2, 2), 4),
    ],
)
def test_variation_is_a_bound_however_coarse(name, domain, variation):
    for to_spare in (1.0, 1e-2, 1e-4, 1e-6):
        measure = Measure(activation_of(name), uniform(), domain)
        cells = measure.cells(to_spare * measure.mass * measure.span)
        got = _variation(cells, cells.moments.mass > 0, measure.curve.edges)
        assert got >= variation * (1 - 1e-4)
    assert got <= variation * 1.05


@pytest.mark.parametrize("name", ["gelu", "selu", "hardswish", "x*sin(x)", "abs(x)**1.5", SAW])
def test_ranges_hold_f_prime_and_are_not_wide(name):
    measure = Measure(activation_of(name), uniform(), (LO, HI))
    cells = measure.cells(1e-5 * measure.mass * measure.span)
    inside = np.linspace(0, 1, 9)[1:-1]
    for part in inside:
        at = cells.lo + part * (cells.hi - cells.lo)
        values = measure.curve.slopes(at, measure.curve.run_at(cells.hi))
        assert (np.abs(values - cells.centre) <= cells.width / 2 + 1e-14).all()
    assert np.median(cells.width) < 0.1 * measure.span


# Functions and domains at the edge of what can be fitted. Each has an answer with a certificate.
FITTED = [
    ("gelu", (1e-8, 2e-8)),
    ("gelu", (1.0, 1.0000001)),
    ("gelu", (3, 9)),
    ("gelu", (-1e6, 1e6)),
    ("selu", (-1e6, 1e6)),
    ("softsign", (-1e6, 1e6)),
    ("log(x)", (1, 10)),
    ("1/x", (0.01, 1)),
    ("x*sin(x)", (LO, HI)),
    ("x**3", (LO, HI)),
    ("x**20", (LO, HI)),
    ("abs(x)**1.5", (LO, HI)),
    ("x**2.5", (0, 5)),
    ("exp(-1000000*x**2)", (LO, HI)),
    ("x*tanh(100000*x)", (LO, HI)),
    ("x*Phi(x)/10**30", (LO, HI)),
    ("10**30*x*Phi(x)", (LO, HI)),
    ("sqrt(x**2 + 1)", (LO, HI)),
]


@pytest.mark.parametrize("kind", ["best", "contiguous"])
@pytest.mark.parametrize(("name", "domain"), FITTED)
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
    ("log(x)", (LO, HI)),
    ("log(x)", (-10, -1)),
    ("log(x)", (-1, 10)),
    ("1/x", (LO, HI)),
    ("1/(x - 0.3)**2", (LO, HI)),
    ("tan(x)", (LO, HI)),
    ("sqrt(x**2 - 1)", (LO, HI)),
    ("where(x > 0, sqrt(x), x)", (LO, HI)),
    ("exp(x)", (-1000, 1000)),
    ("x*log(x)", (0, 1)),
    ("abs(x)**1.01", (LO, HI)),
    ("sin(1000*x)", (LO, HI)),
    ("x**2*sin(1/x)", (LO, HI)),
]


@pytest.mark.parametrize(("name", "domain"), REFUSED)
def test_what_cannot_be_fitted_is_refused(name, domain):
    with pytest.raises(InputError, match=r"^(f and f'|f'|expression) .*(domain|position)") as caught:
        fit(from_expression(name), 2, domain=domain)
    assert "\n" not in str(caught.value)


WEIGHTS = [
    "norm",
    "norm(0,1e-6)",
    "cauchy",
    "t(1.5)",
    "beta(0.5,0.5)",
    "gamma(0.3)",
    "gamma(0.1)",
    "expon",
    "lognorm(1)",
    "pareto(1)",
    "laplace",
]


@pytest.mark.parametrize("weight", WEIGHTS)
def test_distributions_are_certified(weight):
    """And the error is that of quantiles: ∫ g(x) w(x) dx = ∫ g(quantile(u)) du, to half a step of g's variation."""
    n = 50_000
    result = fitted("gelu", 3, "best", weight)
    assert 0 < result.error.lower_bound <= result.error.l2_squared
    assert result.error.gap <= GAP
    name, _, inside = weight.rstrip(")").partition("(")
    x = getattr(stats, name)(*map(float, filter(None, inside.split(",")))).ppf((np.arange(n) + 0.5) / n)
    squares = (SLOPES["gelu"](x) - result.steps(x)) ** 2
    variation = np.abs(np.diff(squares)).sum() + 2 * squares.max()
    assert result.error.l2_squared == pytest.approx(squares.mean(), rel=0, abs=variation / n / 2)


@pytest.mark.parametrize("weight", ["norm(0,1e-6)", "norm(1e-6,1e-6)", "norm(5,0.001)", "norm(-3,1e-4)"])
def test_a_narrow_peak_on_a_wide_domain_is_not_stepped_over(weight):
    """The domain's far parts have a mass of 1e-12, so they change nothing but rounding."""
    wide, own = (fitted("gelu", 2, "best", weight, domain) for domain in ((LO, HI), None))
    assert wide.error.l2_squared == pytest.approx(own.error.l2_squared, rel=1e-6)
    assert wide.error.gap <= GAP


@pytest.mark.parametrize("domain", [(0.0, 1e-20), (-1e-300, 1e-300), (50.0, 60.0)])
def test_what_float64_cannot_tell_apart_is_one_level(domain):
    """There gelu' is one float64 number, and no cell is worth splitting for the rest."""
    result = fitted("gelu", 3, "best", "uniform", domain)
    assert len(result.steps.levels) == 1
    assert result.error.linf <= 1e-16
    assert result.error.lower_bound <= result.error.l2_squared <= 1e-32 * (domain[1] - domain[0])


def test_weights_that_leave_parts_out():
    """Where w is 0 nothing is measured; an f' that is flat where w is not costs nothing."""
    beyond = from_callable(lambda x: np.where(x > 3, 1.0, 0.0), landmarks=(3.0,))
    part = fit(get("gelu"), 3, weight=beyond)
    whole = fitted("gelu", 3, "best", "uniform", (3.0, 10.0))
    assert part.error.l2_squared == pytest.approx(whole.error.l2_squared, rel=1e-9)
    assert part.error.gap <= GAP
    flat = fit(get("elu"), 2, weight=from_callable(lambda x: np.where(x > 1, 1.0, 0.0), landmarks=(1.0,)))
    assert flat.error.l2_squared == flat.error.lower_bound == 0
    assert flat.steps.levels.tolist() == [1.0]


@pytest.mark.parametrize("kind", ["best", "contiguous"])
def test_a_million_samples(kind):
    samples = np.random.default_rng(7).normal(size=1_000_000)
    result = fit(get("gelu"), 3, levels=kind, weight=from_samples(samples))
    assert result.error.gap <= GAP
    direct = np.mean((SLOPES["gelu"](samples) - result.steps(samples)) ** 2)
    assert result.error.l2_squared == pytest.approx(direct, rel=1e-11)


SAMPLES = {
    "one": [0.3],
    "equal": [2.0] * 10,
    "kinks": [-1.0, 0.0, 0.0, 1.0, 3.0, -3.0, 6.0, 0.5, -0.5],
    "ends": [-1.0, 6.0],
}


@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("name", ["gelu", "selu", "relu6", "hardshrink", "hardswish"])
@pytest.mark.parametrize("kind", ["best", "contiguous"])
def test_few_samples_cost_nothing(name, samples, kind):
    """Sixteen levels serve nine values: the error is 0 exactly, wherever kinks and ends lie."""
    error = fit(get(name), 4, levels=kind, weight=from_samples(SAMPLES[samples])).error
    assert error.l2_squared == error.lower_bound == error.gap == 0


def test_even_is_certified_under_any_weight():
    """q(|x|) under a lopsided weight: no better than shared, and the bound is that of even functions."""
    even, best = (fitted("tanh", 2, kind, "norm(1,1)", (-6.0, 6.0)) for kind in ("even", "best"))
    assert best.error.lower_bound <= best.error.l2_squared <= even.error.l2_squared * (1 + 1e-12)
    assert even.error.gap <= GAP
    points = np.linspace(0.1, 5.9, 50)
    assert even.steps(points).tolist() == even.steps(-points).tolist()


def test_a_wrong_weight_is_named():
    for density, words in [
        (lambda x: -x, "at least 0"),
        (lambda x: np.full_like(x, np.nan), "finite"),
        (np.zeros_like, "must not be zero"),
    ]:
        with pytest.raises(InputError, match=words):
            fit(get("gelu"), 2, weight=from_callable(density))
    with pytest.raises(InputError, match="samples must lie in the domain"):
        fit(get("gelu"), 2, weight=from_samples([20.0, 30.0]), domain=(LO, HI))


# weights that only a call can tell about


def bump(centre, width, beneath=1.0):
    """A density of mass about 2.5 on the line, and a peak of as much that no wider grid falls on."""
    return lambda x: beneath * np.exp(-x * x / 2) + np.exp(-(((x - centre) / width) ** 2) / 2) / width


@pytest.mark.parametrize("beneath", [1.0, 0.0])
@pytest.mark.parametrize("centre", [-8.7025, -4.1438, 2.4653, 5.6389])
@pytest.mark.parametrize("width", [1e-3, 1e-4, 2e-5])
def test_a_narrow_peak_of_a_callable_is_found(width, centre, beneath):
    """Without landmarks. What is printed is the error that landmarks around the peak show, and the bound is below.

    A peak of width 1e-4 was stepped over: the error printed was a third of the true one, the gap 0.
    """
    density = bump(centre, width, beneath)
    error = (result := fit(get("gelu"), 3, weight=from_callable(density))).error
    marked = from_callable(density, landmarks=[centre + width * away for away in (-8, -4, -2, 0, 2, 4, 8)])
    true = judge.l2_squared(get("gelu"), marked, (LO, HI), result.steps)
    # Beneath 1e-12 of the whole, tails of the peak that no rule tells from 0 count.
    assert error.l2_squared == pytest.approx(true, rel=1e-9, abs=1e-12)
    assert error.lower_bound <= true
    assert error.gap <= GAP or error.l2_squared < 1e-12  # said as it is where f' hardly varies


def needle(offset):
    """A peak so narrow that one point of one grid alone meets it, and landmarks around it."""
    centre = LO + (HI - LO) / scan.POINTS * (round(scan.POINTS * 0.47) + offset)
    return bump(centre, 2e-8), [centre + 2e-8 * away for away in (-8, -4, -2, 0, 2, 4, 8)]


def test_a_peak_that_the_judge_alone_sees_is_refused():
    density, marks = needle(GOLDEN)
    with pytest.raises(
        InputError, match=r"^weight callable:n must have no feature that a grid steps over.*landmarks=\.\."
    ):
        fit(get("gelu"), 3, weight=from_callable(density, "n"))
    assert fit(get("gelu"), 3, weight=from_callable(density, landmarks=marks)).error.gap <= GAP


def test_a_peak_that_the_search_alone_sees_has_a_level_of_its_own():
    """So the judge, who misses it, is right all the same, to the fifth of a gap by which the two may differ."""
    density, marks = needle(0.5)
    result = fit(get("gelu"), 3, weight=from_callable(density))
    true = judge.l2_squared(get("gelu"), from_callable(density, landmarks=marks), (LO, HI), result.steps)
    assert result.error.l2_squared == pytest.approx(true, rel=TARGET_GAP / 5)
    assert result.error.lower_bound <= true


@pytest.mark.parametrize("wrong", ["judged", "searched", "bound"])
def test_a_contradiction_is_an_error(wrong):
    """Of a search, a judge and a bound, whichever is off by more than quadrature leaves open."""
    task = _task(get("gelu"), 3, "best", parse_weight("norm"), None)
    values = {"judged": 1.0, "searched": 1.0, "bound": 1.0}
    _check_agreement(task, tuple(values.values()), 0.0)
    values[wrong] = 1 + 1e-6
    with pytest.raises(InputError, match="give landmarks"):
        _check_agreement(task, tuple(values.values()), 0.0)
    _check_agreement(task, tuple(values.values()), 2e-6)


def test_noise_is_no_density():
    with pytest.raises(InputError, match=r"varies too fast to be integrated; give landmarks"):
        fit(get("gelu"), 2, weight=from_callable(lambda x: 1 + np.sin(1e9 * x)))
    rough = from_callable(lambda x: np.exp(np.float32(-x * x / 2)).astype(np.float64))
    smooth = from_callable(lambda x: np.exp(-x * x / 2))
    # float32's rounding is 6e-8 of the density, and as often up as down.
    one, other = (fit(get("gelu"), 2, weight=weight).error.l2_squared for weight in (rough, smooth))
    assert one == pytest.approx(other, rel=6e-8)


def test_samples_on_either_side_of_equally_near_crossings():
    """f' = x, and x - 2 after 0: the crossings of a mid-level at -1.625 and 0.375 are as far from the grid's border."""
    error = fit(
        activation_of(SAW), 1, levels="contiguous", weight=from_samples([0.0, -3.0, -0.5]), domain=(-5, 5)
    ).error
    assert error.l2_squared == pytest.approx(1 / 24, rel=1e-11)  # of -0.5 and 0 about their mean, of three samples
    assert error.gap <= GAP


@pytest.mark.parametrize(
    "name", ["tanh(100000000*x)", "tanh(1000000*x)", "sigmoid(10**9*x)", "x*sigmoid(10**8*x)", "exp(-(10**6*x)**2)"]
)
def test_a_turn_that_float64_cannot_see_is_found(name):
    """f'' is 0 in float64 all around; its sign is known in balls. It was taken for an f' without a bound."""
    error = fit(from_expression(name), 3).error
    assert 0 < error.lower_bound <= error.l2_squared
    if name.startswith("tanh"):  # f' = a·g(ax) has the levels of g times a, and the squared error times a
        a = float(name[5:-3])
        one = fitted("tanh", 3, "best", "uniform", (-1e4, 1e4)).error
        # Each error is within its gap of the optimum on the line; the domains end where f' is below 1e-300.
        assert error.l2_squared / a == pytest.approx(one.l2_squared, rel=error.gap + one.gap)


@pytest.mark.parametrize("name", ["10**308*x", "10**200*tanh(x)", "x**300"])
def test_squares_beyond_float64_are_refused(name):
    with pytest.raises(InputError, match=r"^f' must be at most 1e\+100 in size.*scale f"):
        fit(from_expression(name), 2)


def test_turns_are_looked_for_on_the_domain_alone(monkeypatch):
    """relu(sin(10*x)) turns 32,000 times as far as a search goes, and 64 times here: it took 103 seconds."""
    calls = []
    halved = calculus.bisect
    monkeypatch.setattr(calculus, "bisect", lambda *arguments: calls.append(arguments[1:]) or halved(*arguments))
    curve = Curve(from_expression("sin(10*x)"), LO, HI)
    # f' = 10 cos(10 x) turns at the multiples of pi/10: 31 on each side, and at 0.
    assert len(calls) == len(curve.runs) - 1 == 63
    assert curve.edges[1:-1] == pytest.approx(np.pi / 10 * np.arange(-31, 32), rel=2.0**-52, abs=0)
    assert len(Curve(curve.activation, LO, HI).runs) == 64
    assert len(calls) == 63  # the judge and the report ask again


@pytest.mark.parametrize(
    ("text", "a", "b"), [("x**2 - 2", 1.0, 2.0), ("cos(x)", 1.0, 2.0), ("cos(x)", 9988.0, 9990.0), ("x**3", -1.0, 0.7)]
)
def test_a_root_has_fifty_digits_in_few_steps(text, a, b):
    tape, steps = Tape(from_expression(text).f_expression), []
    ball = tape.arb
    tape.arb = lambda point: steps.append(point) or ball(point)
    found = calculus.bisect(tape, a, b)
    with flint.ctx.workprec(2 * calculus.PRECISION):
        reach = flint.arb(10) ** -50
        assert ball(found - reach) * ball(found + reach) < 0  # proven by a change of sign
    # A root of third order, where secants crawl, is halved to the end.
    assert len(steps) <= (calculus.PRECISION + calculus.SECANTS + 8 if text == "x**3" else 50)
