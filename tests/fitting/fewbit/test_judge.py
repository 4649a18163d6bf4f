"""The judge against mpmath and dense sampling; every shipped file passes, every corrupted number fails."""

import json
import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest

from actfit.coefficients.document import SEALED, parse, seal, validate
from actfit.coefficients.store import DATA
from actfit.fitting.activations import get, oracle
from actfit.fitting.activations.tape import Tape
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit import document, judge
from actfit.fitting.fewbit.curve import Curve
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.fewbit.steps import Steps
from actfit.fitting.fewbit.verify import verify
from actfit.fitting.weights import from_callable, from_samples, uniform
from tests.coefficients.documents import changed
from tests.fitting.fewbit.references import DERIVATIVES, SHOWN, activation_of, fitted, grid
from tests.tiers import in_ci

DOMAIN = (-10.0, 10.0)
FILES = sorted(path.relative_to(DATA).as_posix() for path in DATA.glob("*/fewbit-*.json"))


def by_mpmath(activation, steps, domain):
    """∫ (f' - q)² at 30 digits, cut at borders, kinks and turns of f' and at 0.

    f' is asked through the tape in mpmath's arithmetic, piece by piece: not through arb, in which the judge works.
    """
    lo, hi = domain
    cuts = {lo, hi, 0.0, *steps.borders.tolist(), *activation.breakpoints, *activation.turning_points(1)}
    cuts = sorted(cut for cut in cuts if lo <= cut <= hi)
    total = mpmath.mpf(0)
    with mpmath.workdps(35):
        for a, b in pairwise(cuts):
            piece = next(piece for piece in activation.pieces if piece.lo < (a + b) / 2 < piece.hi)
            level = mpmath.mpf(float(steps(np.array([(a + b) / 2]))[0]))
            points = mpmath.linspace(mpmath.mpf(a), mpmath.mpf(b), 1 + math.ceil(b - a))
            total += mpmath.quad(lambda x, p=piece, y=level: (p.d1.mp(x) - y) ** 2, points)
    return total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bits", "domain"),
    [
        ("gelu", 2, DOMAIN),
        ("selu", 3, DOMAIN),
        ("hardswish", 2, DOMAIN),
        ("relu2", 1, DOMAIN),
        ("softsign", 2, DOMAIN),
        ("gelu", 2, (1.0, 1.0000001)),
        ("mish", 1, (-0.3, 0.7)),
        ("x**2.5", 1, (0.0, 5.0)),
    ],
)
def test_l2_is_rounded_correctly(name, bits, domain):
    result = fitted(name, bits, "best", "uniform", domain)
    assert result.error.l2_squared == float(by_mpmath(activation_of(name), result.steps, domain))


def test_l2_of_a_table_that_is_no_optimum():
    steps = Steps(np.array([-1.0, 0.25, 3.0]), np.array([1, 0, 2, 1]), np.array([-0.5, 0.1, 0.9]))
    for name in ("gelu", "selu", "leaky_relu", "hardshrink"):
        want = by_mpmath(get(name), steps, DOMAIN)
        # Where f' is a step function its values are rounded to float64, as they are stored.
        exact = get(name).step_values is None
        got = judge.l2_squared(get(name), uniform(), DOMAIN, steps)
        assert got == float(want) if exact else got == pytest.approx(float(want), rel=1e-15)


@pytest.mark.parametrize("weight", ["norm", "laplace", "norm(1,0.1)", "t(3)"])
def test_l2_under_a_density(weight):
    """Against mpmath with the density written by hand, to WEIGHTED_DIGITS of the whole."""
    densities = {
        "norm": mpmath.npdf,
        "laplace": lambda x: mpmath.exp(-abs(x)) / 2,
        "norm(1,0.1)": lambda x: mpmath.npdf(x, 1, mpmath.mpf("0.1")),
        "t(3)": lambda x: 2 / (mpmath.pi * mpmath.sqrt(3) * (1 + x**2 / 3) ** 2),
    }
    result = fitted("gelu", 2, "best", weight)
    tape = Tape(get("gelu").d1_expression)
    lo, hi = result.domain
    spots = [lo, -1e3, -100, -30, -10, -3, -1, 0, 0.5, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 3, 10, 30, 100, 1e3, hi]
    cuts = sorted({*(spot for spot in spots if lo <= spot <= hi), *result.steps.borders.tolist()})
    total = mpmath.mpf(0)
    for a, b in pairwise(cuts):
        level = float(result.steps(np.array([(a + b) / 2]))[0])
        total += mpmath.quad(lambda x, y=level: (tape.mp(x) - y) ** 2 * densities[weight](x), [a, (a + b) / 2, b])
    assert result.error.l2_squared == pytest.approx(float(total), rel=10.0 ** (1 - judge.WEIGHTED_DIGITS))


@pytest.mark.parametrize("name", DERIVATIVES)
def test_linf_is_the_greatest_error(name):
    """No sample exceeds linf; the oracle has the same value, to an ulp, on one side of linf_at."""
    for bits in (1, 3):
        result = fitted(name, bits)
        x, _ = grid(400_000)
        dense = np.abs(DERIVATIVES[name](x) - result.steps(x))
        assert dense.max() <= result.error.linf * (1 + 1e-14)
        assert dense.max() >= result.error.linf - 2 * 1.8 * 5e-5  # |f''| <= 1.8, half a step aside; twice for a leap
        at = result.error.linf_at
        sides = [
            abs(float(oracle.df(result.activation, side)) - float(result.steps(np.array([other]))[0]))
            for side in (np.nextafter(at, -99), at, np.nextafter(at, 99))
            for other in (at, np.nextafter(at, 99))
        ]
        assert min(abs(side - result.error.linf) for side in sides) <= 4e-16


@pytest.mark.slow
@pytest.mark.parametrize("name", in_ci(FILES, SHOWN.match))
def test_every_shipped_file_passes(name):
    assert verify(validate(parse((DATA / name).read_text()))) == ([], [])


def wrong_in(document):
    """The problems that `verify` finds; it must be able to verify everything."""
    problems, unverified = verify(document)
    assert unverified == []
    return problems


def resealed(good, path, value):
    """The document with another member at the path, and with its gap and hash right again."""
    bad = changed(good, path, value)
    squared, bound = bad["error"]["l2_squared"], bad["error"]["lower_bound"]
    bad["error"]["gap"] = (squared - bound) / squared if squared else 0.0
    return seal({key: bad[key] for key in bad if key not in SEALED}, 1)


def load(name):
    return json.loads((DATA / name).read_text())


UNWEIGHTED = [
    "error.l2_squared, error.lower_bound and error.gap, as the weight is not in the file (samples: --weight FILE)"
]
NUDGE = 1e-5  # relative; its square is far above the rounding of l2_squared, 1e-16


@pytest.mark.parametrize("name", ["gelu/fewbit-3bit.v1.json", "selu/fewbit-2bit.v1.json", "tanh/fewbit-2bit.v1.json"])
def test_every_corrupted_number_is_refused(name):
    good = load(name)
    solution, error = good["solution"], good["error"]
    for kind in ("borders", "levels"):
        for i, value in enumerate(solution[kind]):
            nudged = value * (1 + NUDGE) or NUDGE
            assert wrong_in(resealed(good, ("solution", kind, i), nudged)), (kind, i)
    count = len(solution["levels"])
    for i, code in enumerate(solution["codes"]):
        for other in range(count):
            around = solution["codes"][max(0, i - 1) : i + 2]
            recoded = [*solution["codes"][:i], other, *solution["codes"][i + 1 :]]
            if other in around or set(recoded) != set(range(count)):
                continue  # the meaning of the document forbids it already
            assert wrong_in(resealed(good, ("solution", "codes"), recoded)), (i, code, other)
    for key in ("l2_squared", "linf"):
        for wrong in (math.nextafter(error[key], 9), math.nextafter(error[key], 0), error[key] * 2):
            [problem] = wrong_in(resealed(good, ("error",), {**error, key: wrong, "lower_bound": 0.0}))
            assert key in problem
    for place in (error["linf_at"] + 1e-3, math.nextafter(error["linf_at"], 9), -9.0):
        [problem] = wrong_in(resealed(good, ("error", "linf_at"), place))
        assert "linf_at" in problem


def test_a_wrong_function_is_refused():
    good = load("gelu/fewbit-3bit.v1.json")
    assert "expr" in wrong_in(resealed(good, ("function", "expr"), "x*sigmoid(x)"))[0]
    own = {"name": "custom", "params": {}}
    problems = wrong_in(resealed(good, ("function",), {**own, "expr": "x*sigmoid(x)"}))
    assert {problem.split()[0] for problem in problems} >= {"error.l2_squared", "error.linf"}
    for expr in ("1/x", "x +", "log(x)"):
        assert len(wrong_in(resealed(good, ("function",), {**own, "expr": expr}))) == 1


@pytest.mark.slow
def test_a_forged_lower_bound_is_refused():
    good, place = load("gelu/fewbit-3bit.v1.json"), ("error", "lower_bound")
    squared, bound = good["error"]["l2_squared"], good["error"]["lower_bound"]
    for forged in (squared, math.nextafter(squared, 0), squared * (1 - 1e-7)):  # nobody knows
        said = verify(resealed(good, place, forged))
        assert said == ([], ["error.lower_bound and error.gap, as searches go no further than a gap of 1e-06"])
    # A table that is not the best, with a bound far above, or a little above, the error of the best.
    steps = Steps(*(np.array(good["solution"][key]) for key in ("borders", "codes", "levels")))
    worse = Steps(steps.borders, steps.codes, steps.levels + 0.003)
    largest, at = judge.linf(Curve(get("gelu"), *DOMAIN), worse)
    whole = judge.l2_squared(get("gelu"), uniform(), DOMAIN, worse)
    error = {"l2_squared": whole, "linf": largest, "linf_at": at, "gap": 0.0}
    other = changed(good, ("solution", "levels"), worse.levels.tolist())
    for share in (0.5, 0.01):
        [problem] = wrong_in(resealed(other, ("error",), {**error, "lower_bound": squared + share * (whole - squared)}))
        assert problem.startswith("error.lower_bound must be at most ")
        assert "the error of a table that was found" in problem
    # A weaker bound is valid too.
    assert wrong_in(resealed(good, place, bound / 2)) == []
    assert wrong_in(resealed(good, place, 0.0)) == []


def test_a_sharper_bound_than_the_usual_is_proven_by_a_finer_search():
    sharp = fit(get("gelu"), 3, target_gap=3e-6)
    assert sharp.error.lower_bound > fitted("gelu", 3).error.lower_bound * (1 + 1e-6)
    assert verify(seal(document.to_document(sharp), 1)) == ([], [])


def test_files_under_a_density(tmp_path):
    np.save(tmp_path / "real.npy", np.arange(5.0))
    good = seal(document.to_document(fitted("gelu", 2, "best", "norm")), 1)
    assert verify(good) == ([], [])
    for factor in (1 + 1e-8, 1 - 1e-8):
        wrong = resealed(good, ("error", "l2_squared"), good["error"]["l2_squared"] * factor)
        assert "l2_squared" in wrong_in(wrong)[0]
    for label, words in [("nrom", "did you mean"), ("norm(0,-1)", "no distribution"), ("callable", "unknown weight")]:
        [problem] = wrong_in(resealed(good, ("options", "weight"), label))
        assert words in problem
    # A label that is a path must not make it open a file, which exists here.
    [problem] = wrong_in(resealed(good, ("options", "weight"), str(tmp_path / "real.npy")))
    assert "must be uniform, a distribution" in problem


@pytest.mark.parametrize("weight", [from_samples([0.1, 0.5, -2.0, 3.0]), from_callable(np.cosh, "steep")])
def test_files_whose_weight_is_not_in_them(weight):
    """l2_squared cannot be verified; numbers that do not depend on the weight are."""
    good = seal(document.to_document(fit(get("gelu"), 1, weight=weight)), 1)
    assert verify(good) == ([], UNWEIGHTED)
    assert verify(resealed(good, ("error", "l2_squared"), 9.0)) == ([], UNWEIGHTED)
    problems, unverified = verify(resealed(good, ("error", "linf"), good["error"]["linf"] * 1.001))
    assert len(problems) == 1
    assert "linf" in problems[0]
    assert unverified == UNWEIGHTED


def test_an_error_that_underflows_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="f' must reach 1e-100 in size on the domain"):
        fit(get("gelu"), 1, domain=(-1000.0, -500.0))
    monkeypatch.setattr("actfit.fitting.fewbit.curve.FLATTEST", 0.0)
    steps = Steps(np.array([]), np.array([0]), np.array([0.0]))
    assert judge.linf(Curve(get("gelu"), -1000.0, -500.0), steps) == (0.0, None)


def test_a_domain_whose_squares_overflow_is_refused() -> None:
    with pytest.raises(InputError, match=r"domain must lie within -1e\+100 1e\+100"):
        fit(get("gelu"), 1, domain=(-1e308, 1e308))
