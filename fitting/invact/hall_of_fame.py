"""Read the formulas of a PySR run from its hall_of_fame.csv, without PySR, whose own reader runs equations as code."""

import csv
import io
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sympy import Abs, Integer, Symbol, sqrt

from fitting.activations.grammar import parse_formula
from fitting.errors import InputError
from fitting.invact.form import Form, S, Y
from fitting.invact.structure import to_form

ENGINE = "pysr"
NAME = "hall_of_fame.csv"
MAX_BYTES = 10_000_000

# PySR's default names of the features, in the order in which `pysr.search` gives them.
_FEATURES = {Symbol("x0", real=True): Y, Symbol("x1", real=True): S}
_FUNCTIONS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "square": (1, lambda u: u**2),
    "cube": (1, lambda u: u**3),
    "neg": (1, lambda u: -u),
    "inv": (1, lambda u: Integer(1) / u),
    "sqrt_abs": (1, lambda u: sqrt(Abs(u))),
}
_JULIA_FLOAT = re.compile(r"\b(\d+\.\d+)[fF]([+-]?\d+)\b")  # 1.5f-5, a Float32


def read(path: Path) -> list[Form]:
    """The formulas in a hall of fame, simplest first: a file, or the folder of a run, or of runs (the newest).

    Variables are y and s, or x0 (y) and x1 (s). Every number becomes a constant, whole exponents stay.
    Raises `InputError` with file, row and column where it is not what PySR writes.
    """
    file = _find(path)
    rows = _rows(file)
    found = []
    for number, row in enumerate(rows, 2):
        where = f"{file} row {number}"
        rank = tuple(_number(row, column, where) for column in ("Complexity", "Loss"))
        try:
            found.append((rank, equation(row["Equation"])))
        except InputError as error:
            raise InputError(f"{where} column Equation: {error}") from None
    if not found:
        raise InputError(f"{file}: must have at least one row below the header, got none")
    return [form for _, form in sorted(found, key=lambda entry: entry[0])]


def equation(text: str) -> Form:
    """One equation in PySR's spelling as a form. Raises `InputError`."""
    plain = _JULIA_FLOAT.sub(r"\1e\2", text).replace("^", "**")
    parsed = parse_formula(plain, (Y, S, *_FEATURES), functions=_FUNCTIONS)
    return to_form(parsed.xreplace(_FEATURES), ENGINE)


def _find(path: Path) -> Path:
    """PySR writes outputs/RUN/hall_of_fame.csv, and beside it a copy with .bak, in case it dies while it writes."""
    if path.is_file():
        return path
    for name in (NAME, NAME + ".bak"):
        for pattern in (name, f"*/{name}", f"outputs/*/{name}"):
            files = [file for file in path.glob(pattern) if file.is_file()]
            if files:
                return max(files, key=lambda file: (file.stat().st_mtime_ns, str(file)))
    raise InputError(f"--import-pysr must name a {NAME} or a folder of PySR's with one in it, got {path}")


def _rows(file: Path) -> list[dict[str, str]]:
    if file.stat().st_size > MAX_BYTES:
        raise InputError(f"{file}: must be smaller than {MAX_BYTES} bytes, got {file.stat().st_size}")
    try:
        reader = csv.DictReader(io.StringIO(file.read_text("utf-8-sig"), newline=""), strict=True)
        header = reader.fieldnames or []
        missing = [column for column in ("Complexity", "Loss", "Equation") if column not in header]
        if missing:
            raise InputError(f"{file} row 1: columns must include {', '.join(missing)}, got {', '.join(header)!r:.200}")
        rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file}: must be CSV in UTF-8: {error}") from None
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise InputError(f"{file} row {number}: must have as many fields as the header has, {len(header)}")
    return rows


def _number(row: dict[str, str], column: str, where: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise InputError(f"{where} column {column}: must be a number, got {row[column]!r:.200}")
    return value
