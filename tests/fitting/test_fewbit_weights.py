"""Weights from names, files, samples and Python: what is read, what is refused, what integrates to one."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate

from fitting.errors import InputError
from fitting.weights import (
    DEFAULT_DOMAIN,
    from_callable,
    from_distribution,
    from_samples,
    named,
    parse_weight,
    read_samples,
    uniform,
)

MASS = 1e-11  # two tails of 1e-12 are left out; the rest is the quadrature's


@pytest.mark.parametrize(
    "text",
    [
        "norm",
        "norm(0,2)",
        "norm(loc=1, scale=0.5)",
        "norm(3, scale=1e-3)",
        "laplace",
        "t(5)",
        "t(df=5, loc=-2)",
        "expon",
        "gamma(2.5)",
        "beta(2, 3)",
        "uniform(-1, 4)",
        "logistic",
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


def test_parameters_positional_and_by_name_mean_the_same():
    x = np.linspace(-3, 5, 11)
    by_place, by_name = parse_weight("norm(1,0.5)"), parse_weight(" norm( loc = 1 , scale=5e-1 ) ")
    assert by_place.density(x).tolist() == by_name.density(x).tolist()
    assert by_place.domain == by_name.domain
    assert by_place.label == "norm(1,0.5)"
    assert by_name.label == "norm(loc=1,scale=0.5)"
    assert by_place.density(x) == pytest.approx(np.exp(-2 * (x - 1) ** 2) / math.sqrt(math.pi / 2), rel=1e-14)
    assert from_distribution("norm", (1.0, 0.5)).label == by_place.label


def test_labels_bring_weights_back():
    for text in ("uniform", "norm", "norm(0.10000000000000001,2)", "t(df=5)"):
        weight = parse_weight(text)
        again = named(weight.label)
        assert again.label == weight.label
        assert again.domain == weight.domain


def test_uniform_is_one_on_the_default_domain():
    weight = uniform()
    assert weight.domain == DEFAULT_DOMAIN == (-10, 10)
    assert weight.height == 1
    assert weight.density(np.array([-20.0, 0.0, 3.0])).tolist() == [1, 1, 1]


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


def write(path, values):
    match path.suffix:
        case ".npy":
            np.save(path, values)
        case ".npz":
            np.savez(path, some=values)
        case ".csv":
            path.write_text(",".join(map(repr, values.ravel().tolist())) + "\n")
        case _:
            path.write_text("\n".join(" ".join(map(repr, row)) for row in np.atleast_2d(values).tolist()))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".txt", ".csv", ".dat", ""])
def test_sample_files(tmp_path, suffix):
    values = np.array([[0.1, -3.25, 1e-300], [7.0, 0.1, 2.5]])
    path = tmp_path / f"recorded{suffix}"
    write(path, values)
    weight = parse_weight(str(path))
    assert weight.samples.tolist() == sorted(values.ravel().tolist())
    assert weight.domain == (-3.25, 7.0)
    assert weight.spelling == path.name
    # Of the values in order, whatever shape and file they came from.
    assert weight.label == from_samples(np.sort(values, axis=None)).label
    assert weight.label.startswith("samples:")


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "uint64", "bool"])
def test_samples_of_other_types(tmp_path, dtype):
    np.save(tmp_path / "a.npy", np.array([0, 1, 1], dtype=dtype))
    assert read_samples(tmp_path / "a.npy").dtype == dtype
    assert parse_weight(str(tmp_path / "a.npy")).samples.tolist() == [0, 1, 1]


def test_equal_samples_have_a_domain():
    assert from_samples(np.full(5, 2.0)).domain == (1, 3)


def refused(text):
    with pytest.raises(InputError) as caught:
        parse_weight(str(text))
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Trap:
    """Unpickling it would raise something else than InputError."""

    def __reduce__(self):
        return (exit, (3,))


def test_pickled_arrays_are_refused_unopened(tmp_path):
    objects = np.array([Trap()], dtype=object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "a.npz", objects)
    for name in ("a.npy", "a.npz"):
        assert "cannot be read" in refused(tmp_path / name)


def test_bad_sample_files(tmp_path):
    assert "must exist" in refused(tmp_path / "missing.npy")
    assert "must exist" in refused(tmp_path)
    for name, text in [("empty.txt", ""), ("blank.csv", " \n, ,")]:
        (tmp_path / name).write_text(text)
        assert "at least one number" in refused(tmp_path / name)
    np.save(tmp_path / "none.npy", np.empty((0, 4)))
    assert "at least one number" in refused(tmp_path / "none.npy")
    for bad in ("nan", "inf", "-inf"):
        (tmp_path / "bad.txt").write_text(f"1 2 {bad}")
        assert "finite" in refused(tmp_path / "bad.txt")
    (tmp_path / "words.txt").write_text("1 two 3")
    assert "cannot be read" in refused(tmp_path / "words.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in refused(tmp_path / "binary.txt")
    for name in ("not.npy", "not.npz"):
        (tmp_path / name).write_bytes(b"no array")
        assert "cannot be read" in refused(tmp_path / name)
    (tmp_path / "nothing.npy").write_bytes(b"")
    assert "cannot be read" in refused(tmp_path / "nothing.npy")
    np.savez(tmp_path / "two.npz", a=np.ones(2), b=np.ones(2))
    assert "one array" in refused(tmp_path / "two.npz")
    np.save(tmp_path / "text.npy", np.array(["a"]))
    assert "real numbers" in refused(tmp_path / "text.npy")
    np.save(tmp_path / "complex.npy", np.array([1 + 2j]))
    assert "real numbers" in refused(tmp_path / "complex.npy")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be uniform"),
        ("norm(", "must be uniform"),
        ("norm(0,2))", "must be numbers"),
        ("norm(a)", "must be numbers"),
        ("norm(0,1,2,3)", "norm"),
        ("norm(sigma=2)", "norm"),
        ("norm(0,-1)", "no distribution"),
        ("norm(nan)", "no distribution"),
        ("norm(0,inf)", "no distribution"),
        ("nrom", "did you mean norm"),
        ("poisson(3)", "unknown weight"),
        ("binom(3,0.5)", "unknown weight"),
        ("levy_stable(1.5,0)", "draw samples"),
        ("uniform(", "must be uniform"),
        ("__import__('os')", "unknown weight|numbers|must be"),
        ("rv_continuous", "unknown weight"),
    ],
)
def test_texts_that_are_no_weight(text, words):
    assert re.search(words, refused(text))


@pytest.mark.parametrize("name", ["samples.npy", "/etc/hostname", "C:\\data.txt"])
def test_names_open_no_files(name):
    """What a document says its weight is must not make a check read files."""
    with pytest.raises(InputError, match="must be uniform"):
        named(name)


def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"each parameter once, got 'loc=2' again"):
        parse_weight("norm(loc=1, loc=2)")
