"""Samples from arrays and files of recorded values."""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actfit.fitting.activations.tape import Array
from actfit.fitting.errors import InputError
from actfit.fitting.options import is_plain

REAL = "iuf"  # kinds of dtypes whose values are real numbers
OTHERS = {"b": "booleans", "c": "complex numbers", "U": "strings", "S": "bytes", "O": "objects", "V": "records"}
LONGEST = 200  # characters of a library's reason, which may quote the whole file
ARRAYS = (".npy", ".npz")


def real_numbers(samples: ArrayLike) -> Array:
    """`samples` flattened, in float64. Raises `InputError` if there are none, or some are not finite real numbers."""
    try:
        values = np.asarray(samples)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of unequal length; a tensor on a GPU, or with a graph
        raise InputError(
            f"samples must be an array of real numbers; NumPy cannot take them: {_reason(error)}"
        ) from None
    if values.dtype.kind not in REAL:
        kind = OTHERS.get(values.dtype.kind, values.dtype.name)
        way_out = "take the real part" if values.dtype.kind == "c" else "convert it if numbers are meant: astype(float)"
        raise InputError(f"samples must be real numbers, got {kind}; {way_out}")
    if not values.size:
        raise InputError("samples must hold at least one number, got none")
    with np.errstate(over="ignore"):  # a longdouble may be beyond float64
        numbers = values.astype(np.float64).ravel()
    bad = np.count_nonzero(~np.isfinite(numbers))
    if bad:
        raise InputError(f"samples must be finite, got {bad} NaN or infinite (in float64); leave them out")
    return numbers


def read_samples(path: Path) -> NDArray[np.generic]:
    """Samples from a `.npy`, `.npz` (one array) or text file. Nothing is unpickled."""
    if not path.is_file():
        raise InputError(f"sample file must exist, got {str(path)!r}")
    try:
        return _array(path) if path.suffix in ARRAYS else _text(path)
    except InputError:
        raise
    except Exception as error:  # of any kind: NumPy lets exceptions of zipfile, zlib, tokenize and ast through
        raise InputError(f"sample file {path} cannot be read: {_reason(error)}") from None


def _array(path: Path) -> NDArray[np.generic]:
    with path.open("rb") as file:  # opened here, as NumPy leaves a broken archive open
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            return np.asarray(loaded)
        with loaded as archive:
            if len(archive.files) != 1:
                raise InputError(f"sample file {path} must hold one array, got {len(archive.files)}")
            return np.asarray(archive[archive.files[0]])


def _text(path: Path) -> Array:
    text = path.read_text(encoding="utf-8-sig")
    if not is_plain(text):
        raise ValueError("numbers are written in the digits 0 to 9, without underscores")
    return np.array([float(word) for word in text.replace(",", " ").split()])


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "it claims more numbers than memory holds"
    reason = str(error).partition("\n")[0]
    if "pickle" in reason:  # numpy's advice would be to trust the file
        return "it is no array of numbers in NumPy's format"
    return reason if len(reason) <= LONGEST else reason[:LONGEST] + "..."
