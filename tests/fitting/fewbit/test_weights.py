"""Weights from names, samples and Python: what is accepted, what is refused, and total masses."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate

from actfit.fitting.activations import get
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.weights import (
    DEFAULT_DOMAIN,
    from_callable,
    from_distribution,
    from_samples,
    named,
    parse_weight,
    uniform,
)

MASS = 1e-11  # two tails of 1e-12 are left out; the rest is the quadrature's


@pytest.mark.parametrize(
    "text",
    [
        "norm",
        "norm(0.10000000000000001,2)",
        "norm(3, scale=1e-3)",
        "laplace",
        "t(5)",
        "t(df=5, loc=-2)",
        "gamma(2.5)",
        "beta(2, 3)",
        "uniform(-1, 4)",
        "lognorm(0.5)",
    ],
)
def test_densities_integrate_to_one(text):
    weight = parse_weight(text)
    lo, hi = weight.domain
    inner = [point for point in weight.landmarks if lo < point < hi]
    edges = [lo, *inner, hi]
    # On pieces between landmarks, each to 1e-13 of the whole.
    total = math.fsum(
        integrate.quad(lambda x: float(weight.density(np.array(x))), a, b, epsabs=1e-14, epsrel=1e-12, limit=200)[0]
        for a, b in pairwise(edges)
    )
    assert total == pytest.approx(1, rel=0, abs=MASS)
    assert list(weight.landmarks) == sorted(weight.landmarks)
    assert weight.spelling == weight.label
    again = named(weight.label)
    assert (again.label, again.domain) == (weight.label, weight.domain)


def test_parameters_positional_and_by_name_mean_the_same():
    x = np.linspace(-3, 5, 11)
    by_place, by_name = parse_weight("norm(1,0.5)"), parse_weight(" norm( loc = 1 , scale=5e-1 ) ")
    assert by_place.density(x).tolist() == by_name.density(x).tolist()
    assert by_place.domain == by_name.domain
    assert by_place.label == "norm(1,0.5)"
    assert by_name.label == "norm(loc=1,scale=0.5)"
    assert by_place.density(x) == pytest.approx(np.exp(-2 * (x - 1) ** 2) / math.sqrt(math.pi / 2), rel=1e-14)
    assert from_distribution("norm", (1.0, 0.5)).label == by_place.label


def test_folded_weights_count_both_sides():
    x = np.array([0.0, 0.5, 2.0])
    folded = parse_weight("norm(1,1)").folded()
    whole = parse_weight("norm(1,1)")
    assert folded.density(x).tolist() == (whole.density(x) + whole.density(-x)).tolist()
    assert folded.domain == (0, max(map(abs, whole.domain)))
    assert min(folded.landmarks) >= 0
    assert list(folded.landmarks) == sorted(set(folded.landmarks))
    assert uniform().folded().height == 2
    samples = from_samples([-2.0, 1.0, 3.0]).folded()
    assert sorted(samples.samples.tolist()) == [1, 2, 3]
    assert samples.domain == (0, 3)


def test_callables_are_labelled_as_such():
    def triangle(x):
        return np.maximum(0, 1 - np.abs(x))

    assert from_callable(triangle).label == "callable:triangle"
    assert from_callable(triangle, "roof").label == "callable:roof"
    assert from_callable(triangle).spelling is None
    assert from_callable(triangle, landmarks=(0, 1)).landmarks == (0.0, 1.0)
    with pytest.raises(InputError, match=r"unknown weight|must be"):
        named("callable:roof")


def refused(text):
    with pytest.raises(InputError) as caught:
        parse_weight(str(text))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be uniform"),
        ("norm(0,2))", "each parameter must be a number, got '2\\)'"),
        ("norm(loc=a)", "loc must be a number, got 'a'"),
        ("norm(0,1,2,3)", "^weight norm takes loc and scale only, got 4 numbers$"),
        ("norm(sigma=2)", "^weight norm takes loc and scale only, got 'sigma'$"),
        ("norm(1,loc=2)", "each parameter once, got loc by its place and by its name"),
        ("norm(loc=1, loc=2)", "each parameter once, got 'loc=2' again"),
        ("t", r"^weight t needs df, as in t\(df\)$"),
        # Digits of other scripts, and underscores, which float() takes.
        ("norm(\N{ARABIC-INDIC DIGIT THREE})", "must be a number, got .*; write it in the digits 0 to 9"),
        ("norm(0,\N{FULLWIDTH DIGIT TWO})", "must be a number, got .*; write it in the digits 0 to 9"),
        ("x" * 10_000, "^.{,300}$"),
        ("norm(0,-1)", "no distribution"),
        ("norm(0,inf)", "no distribution"),
        ("nrom", "did you mean norm"),
        ("poisson(3)", "^weight poisson is discrete: only continuous distributions, or a file of samples$"),
        ("levy_stable(1.5,0)", "draw samples"),
        ("__import__('os')", "each parameter must be a number"),
        ("rv_continuous", "unknown weight"),
    ],
)
def test_texts_that_are_no_weight(text, words):
    assert re.search(words, refused(text))


def test_no_file_takes_the_place_of_a_name(tmp_path, monkeypatch):
    """A file called `uniform` was once the default weight of every fit in its folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("uniform", "norm", "norm(0,1)", "mine"):
        (tmp_path / name).write_text("1 2 3")
    assert parse_weight("uniform").height == 1
    for name in ("norm", "norm(0,1)"):
        assert parse_weight(name).samples is None
        assert parse_weight(name).label == name
        assert parse_weight(f"./{name}").samples.tolist() == [1, 2, 3]
        assert parse_weight(parse_weight(f"./{name}").spelling).samples.tolist() == [1, 2, 3]
    assert refused("mine").endswith("; for the file of that name write ./mine")
    assert "write ./" not in refused("yours")


@pytest.mark.parametrize("spelling", ["uniform", " uniform ", "uniform()"])
def test_the_name_uniform_is_one_weight(spelling):
    """scipy's uniform lies on [0, 1]; under the same label it would pass for ours."""
    assert (named(spelling).label, named(spelling).height, named(spelling).domain) == ("uniform", 1.0, DEFAULT_DOMAIN)
    own = from_distribution("uniform")
    assert own.label == "uniform(0,1)"
    assert named(own.label).domain == own.domain


def test_samples_far_out_need_a_domain():
    with pytest.raises(InputError, match=r"^the samples reach -1e\+300, and squares .* beyond 1e\+100: give --domain$"):
        fit(get("gelu"), 1, weight=from_samples([1.0, -1e300]))
    assert fit(get("gelu"), 1, weight=from_samples([1.0, -1e300]), domain=(-10, 10)).error.l2_squared == 0
    assert from_samples(np.full(5, 2.0)).domain == (1, 3)
    assert from_samples([1e30]).domain[0] < 1e30 < from_samples([1e30]).domain[1]


@pytest.mark.parametrize("name", ["samples.npy", "/etc/hostname", "C:\\data.txt"])
def test_names_open_no_files(name):
    """The weight's label in a document must not make a check read files."""
    with pytest.raises(InputError, match="must be uniform"):
        named(name)
