"""Samples from files and Python: what is read, and what is refused, hostile files among it."""

import io
import re
import zipfile

import numpy as np
import pytest

from actfit.fitting.errors import InputError
from actfit.fitting.samples import read_samples
from actfit.fitting.weights import from_samples, parse_weight


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


def saved(save, *values, **options):
    file = io.BytesIO()
    save(file, *values, **options)
    return file.getvalue()


NUMBERS = header("<f8", (4,)) + np.arange(4.0).tobytes()
VALUES = [0.1, -3.25, 1e-300, 7.0, 0.1, 2.5]
READ = {
    "a.npy": (saved(np.save, np.reshape(VALUES, (2, 3))), VALUES),
    "a.npz": (saved(np.savez, some=VALUES), VALUES),
    "a.csv": (b"0.1,-3.25,1e-300\n7.0,0.1,2.5\n", VALUES),
    "a.dat": (b"0.1 -3.25 1e-300\n7.0\n0.1 2.5", VALUES),
    "a": (b"0.1 -3.25 1e-300 7.0 0.1 2.5", VALUES),
    "column.npy": (header("<f8", (4,)).replace(b"False", b"True ") + np.arange(4.0).tobytes(), [0, 1, 2, 3]),
    "one.npy": (header("<f8", ()) + np.float64(1.5).tobytes(), [1.5]),
    "spreadsheet.csv": (b"\xef\xbb\xbf1,2\r\n3,\r\n", [1, 2, 3]),
}


@pytest.mark.parametrize("name", READ)
def test_files_that_are_read(tmp_path, name):
    content, values = READ[name]
    (tmp_path / name).write_bytes(content)
    weight = parse_weight(str(tmp_path / name))
    assert weight.samples.tolist() == sorted(values)
    assert weight.spelling == (name if "." in name else f"./{name}")  # so that it is read as a path again
    # Of the values in order, whatever shape and file they came from.
    assert weight.label == from_samples(np.sort(values)).label
    assert weight.label.startswith("samples:")


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "uint64", ">f8", "longdouble"])
def test_samples_of_other_types(tmp_path, dtype):
    np.save(tmp_path / "a.npy", np.array([0, 1, 1], dtype=dtype))
    assert read_samples(tmp_path / "a.npy").dtype == dtype
    assert parse_weight(str(tmp_path / "a.npy")).samples.tolist() == [0, 1, 1]


NO_NUMBERS = {
    "datetime64": ("<M8[s]", "got datetime64.*astype"),
    "booleans": ("|b1", "got booleans.*astype"),
    "strings": ("<U2", "got strings.*astype"),
    "records": ([("a", "<f4"), ("b", "<f4")], "got records"),
    "void": ("|V8", "got records"),
    "complex": ("<c8", "got complex numbers; take the real part"),
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_only_real_numbers_are_samples(tmp_path, kind):
    """numpy would convert all of these to float64 silently."""
    descr, words = NO_NUMBERS[kind]
    data = header(descr, (2,)) + bytes(16)
    for name, content in (("a.npy", data), ("a.npz", archive("a.npy", data))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"^samples must be real numbers, {words}"):
            parse_weight(str(tmp_path / name))


@pytest.mark.parametrize("samples", [["1", "2"], [True, False], [None], b"12", {1, 2}, [10**400]])
def test_samples_that_are_not_numbers_are_refused(samples):
    with pytest.raises(InputError, match=r"^samples must be real numbers, got (strings|booleans|objects|bytes)"):
        from_samples(samples)


class Trap:
    """Unpickling the file would raise another exception than InputError."""

    def __reduce__(self):
        return (exit, (3,))


PICKLED = np.array([Trap()], dtype=object)
REFUSED = {
    "missing.npy": (None, "must exist"),
    "pickled.npy": (saved(np.save, PICKLED, allow_pickle=True), "cannot be read"),
    "pickled.npz": (saved(np.savez, PICKLED), "cannot be read"),
    "blank.csv": (b" \n, ,", "at least one number"),
    "none.npy": (saved(np.save, np.empty((0, 4))), "at least one number"),
    "nan.txt": (b"1 2 nan", "finite"),
    "inf.txt": (b"1 2 -inf", "finite"),
    "words.txt": (b"1 two 3", "cannot be read"),
    "binary.txt": (b"\xff\xfe\x00", "cannot be read"),
    "nothing.npy": (b"", "cannot be read"),
    "two.npz": (saved(np.savez, np.ones(2), np.ones(2)), "one array, got 2"),
    "claims.npy": (header("<f8", (10**12,)) + bytes(80), "it claims more numbers than memory holds"),
    "claims.npz": (archive("a.npy", header("<f8", (10**12,)) + bytes(80)), "it claims more numbers than memory holds"),
    "overflows.npy": (header("<f8", (10**12, 10**12)), "cannot be read"),
    "negative.npy": (header("<f8", (-5,)) + bytes(80), "cannot be read"),
    "short.npy": (NUMBERS[:-8], "cannot be read"),
    "parentheses.npy": (NUMBERS[:10] + b"(" * 118, "cannot be read"),
    "cut.npz": (archive("a.npy", NUMBERS)[:-10], "cannot be read"),
    "broken.npz": (archive("a.npy", NUMBERS).replace(np.float64(3).tobytes(), bytes(8)), "cannot be read"),
    "locked.npz": (archive("a.npy", NUMBERS).replace(b"\x14\x00\x00\x00", b"\x14\x00\x01\x00"), "cannot be read"),
    "text.npz": (archive("a.txt", b"1 2 3"), "got bytes"),
    "beyond.npy": (
        header(np.dtype(np.longdouble).str, (1,)) + np.array(["1e4000"], dtype=np.longdouble).tobytes(),
        "samples must be finite, got 1 NaN or infinite",
    ),
    "arabic.txt": ("1 \N{ARABIC-INDIC DIGIT THREE}".encode(), "in the digits 0 to 9, without underscores"),
    "underscore.txt": (b"1_000 2", "in the digits 0 to 9, without underscores"),
    "long.txt": (b"a" * 1_000_000, "cannot be read"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_are_refused(tmp_path, name):
    """One short line, no warning (they are errors here), no other exception."""
    content, words = REFUSED[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        parse_weight(str(tmp_path / name))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(tmp_path))
