"""Weights from names, files, samples and Python: what is accepted, what is refused, and total masses."""

import io
import math
import re
import zipfile
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
    assert weight.spelling == (path.name if suffix else f"./{path.name}")  # so that it is read as a path again
    # Of the values in order, whatever shape and file they came from.
    assert weight.label == from_samples(np.sort(values, axis=None)).label
    assert weight.label.startswith("samples:")


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "uint64", ">f8", "longdouble"])
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
    """Unpickling the file would raise another exception than InputError."""

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
    for count in (0, 2):
        np.savez(tmp_path / "some.npz", *[np.ones(2)] * count)
        assert f"one array, got {count}" in refused(tmp_path / "some.npz")
    np.save(tmp_path / "text.npy", np.array(["a"]))
    assert "real numbers" in refused(tmp_path / "text.npy")
    np.save(tmp_path / "complex.npy", np.array([1 + 2j]))
    assert "real numbers" in refused(tmp_path / "complex.npy")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be uniform"),
        ("norm(", "must be uniform"),
        ("norm(0,2))", "each parameter must be a number, got '2\\)'"),
        ("norm(a)", "each parameter must be a number, got 'a'"),
        ("norm(loc=a)", "loc must be a number, got 'a'"),
        ("norm(0,1,2,3)", "^weight norm takes loc and scale only, got 4 numbers$"),
        ("norm(sigma=2)", "^weight norm takes loc and scale only, got 'sigma'$"),
        ("t(1,2,3,4)", "^weight t takes df, loc and scale only, got 4 numbers$"),
        ("norm(1,loc=2)", "each parameter once, got loc by its place and by its name"),
        ("t", r"^weight t needs df, as in t\(df\)$"),
        ("beta(b=1)", r"^weight beta needs a, as in beta\(a, b\)$"),
        # Digits of other scripts, and underscores, which float() takes.
        ("norm(\N{ARABIC-INDIC DIGIT THREE})", "must be a number, got .*; write it in the digits 0 to 9"),
        ("norm(0,\N{FULLWIDTH DIGIT TWO})", "must be a number, got .*; write it in the digits 0 to 9"),
        ("norm(1_0)", "must be a number, got '1_0'; write it in the digits 0 to 9"),
        ("n\N{LATIN SMALL LETTER O WITH DIAERESIS}rm", "must be uniform"),
        ("x" * 10_000, "^.{,300}$"),
        ("norm(0,-1)", "no distribution"),
        ("norm(nan)", "no distribution"),
        ("norm(0,inf)", "no distribution"),
        ("nrom", "did you mean norm"),
        ("poisson(3)", "^weight poisson is discrete: only continuous distributions, or a file of samples$"),
        ("binom(3,0.5)", "binom is discrete"),
        ("levy_stable(1.5,0)", "draw samples"),
        ("uniform(", "must be uniform"),
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


def header(descr, shape):
    """The header of a .npy file, with any claims."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def archive(member, content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as members:
        members.writestr(member, content)
    return file.getvalue()


NUMBERS = header("<f8", (4,)) + np.arange(4.0).tobytes()
NO_NUMBERS = {
    "datetime64": ("<M8[s]", "got datetime64.*astype"),
    "timedelta64": ("<m8[s]", "got timedelta64.*astype"),
    "bool": ("|b1", "got booleans.*astype"),
    "strings": ("<U2", "got strings.*astype"),
    "bytes": ("|S8", "got bytes.*astype"),
    "records": ([("a", "<f4"), ("b", "<f4")], "got records"),
    "one field": ([("a", "<f8")], "got records"),
    "void": ("|V8", "got records"),
    "complex": ("<c8", "got complex numbers; take the real part"),
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_only_real_numbers_are_samples(tmp_path, kind, suffix):
    """numpy would convert all of these, except objects, to float64 silently."""
    descr, words = NO_NUMBERS[kind]
    data = header(descr, (2,)) + bytes(16)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(data if suffix == ".npy" else archive("a.npy", data))
    assert re.search(f"^samples must be real numbers, {words}", refused(path))
    array = np.zeros(2, dtype=descr)
    with pytest.raises(InputError, match=words):
        from_samples(array)


@pytest.mark.parametrize(
    "samples", [["1", "2"], [True, False], [1, "2"], [None], "12", b"12", {1, 2}, {"a": 1}, 10**400, [10**400]]
)
def test_samples_that_are_not_numbers_are_refused(samples):
    with pytest.raises(InputError, match=r"^samples must be real numbers, got (strings|booleans|objects|bytes)"):
        from_samples(samples)


HOSTILE = {
    "claims.npy": (header("<f8", (10**12,)) + bytes(80), "it claims more numbers than memory holds"),
    "claims.npz": (archive("a.npy", header("<f8", (10**12,)) + bytes(80)), "it claims more numbers than memory holds"),
    "overflows.npy": (header("<f8", (10**12, 10**12)), "cannot be read: array is too big"),
    "negative.npy": (header("<f8", (-5,)) + bytes(80), "cannot be read"),
    "short.npy": (NUMBERS[:-8], "cannot be read"),
    "short.npz": (archive("a.npy", NUMBERS[:-8]), "cannot be read"),
    "parentheses.npy": (NUMBERS[:10] + b"(" * 118, "cannot be read"),
    "version.npy": (NUMBERS[:6] + b"\x09" + NUMBERS[7:], "cannot be read"),
    "cut.npz": (archive("a.npy", NUMBERS)[:-10], "cannot be read"),
    "broken.npz": (archive("a.npy", NUMBERS).replace(np.float64(3).tobytes(), np.float64(4).tobytes()), "Bad CRC-32"),
    "locked.npz": (archive("a.npy", NUMBERS).replace(b"\x14\x00\x00\x00", b"\x14\x00\x01\x00"), "encrypted"),
    "packed.npz": (archive("a.npy", NUMBERS).replace(b"\x14\x00" + bytes(4), b"\x14\0\0\0c\0"), "compression method"),
    "text.npz": (archive("a.txt", b"1 2 3"), "got bytes"),
    "beyond.npy": (
        header(np.dtype(np.longdouble).str, (1,)) + np.array(["1e4000"], dtype=np.longdouble).tobytes(),
        "samples must be finite, got 1 NaN or infinite",
    ),
    "arabic.txt": ("1 \N{ARABIC-INDIC DIGIT THREE}".encode(), "in the digits 0 to 9, without underscores"),
    "underscore.txt": (b"1_000 2", "in the digits 0 to 9, without underscores"),
    "long.txt": (b"a" * 1_000_000, "could not convert string to float: 'aaa"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sample_files(tmp_path, name):
    """One short line, no warning (they are errors here), no other exception."""
    content, words = HOSTILE[name]
    (tmp_path / name).write_bytes(content)
    message = refused(tmp_path / name)
    assert words in message
    assert len(message) < 300 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "values"),
    [
        ("column.npy", header("<f8", (4,)).replace(b"False", b"True ") + np.arange(4.0).tobytes(), [0, 1, 2, 3]),
        ("one.npy", header("<f8", ()) + np.float64(1.5).tobytes(), [1.5]),
        ("archive.npy", archive("a.npy", NUMBERS), [0, 1, 2, 3]),
        ("spreadsheet.csv", b"\xef\xbb\xbf1,2\r\n3,\r\n", [1, 2, 3]),
    ],
)
def test_unusual_sample_files(tmp_path, name, content, values):
    (tmp_path / name).write_bytes(content)
    assert parse_weight(str(tmp_path / name)).samples.tolist() == values


def test_samples_far_out_need_a_domain():
    with pytest.raises(InputError, match=r"^the samples reach -1e\+300, and squares .* beyond 1e\+100: give --domain$"):
        fit(get("gelu"), 1, weight=from_samples([1.0, -1e300]))
    assert fit(get("gelu"), 1, weight=from_samples([1.0, -1e300]), domain=(-10, 10)).error.l2_squared == 0
    assert from_samples([1e30]).domain[0] < 1e30 < from_samples([1e30]).domain[1]


@pytest.mark.parametrize("name", ["samples.npy", "/etc/hostname", "C:\\data.txt"])
def test_names_open_no_files(name):
    """The weight's label in a document must not make a check read files."""
    with pytest.raises(InputError, match="must be uniform"):
        named(name)


def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"each parameter once, got 'loc=2' again"):
        parse_weight("norm(loc=1, loc=2)")
