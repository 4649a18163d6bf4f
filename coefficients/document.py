"""A document as text: strict reading, one way to write it, and its hash."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any, Final

from actfit.coefficients.files import READING, noted
from actfit.coefficients.meaning import check_meaning
from actfit.coefficients.naming import check_place
from actfit.coefficients.schema import CoefficientError, Document, check_shape, problem, resolved, schema

SCHEMA_VERSION: Final = 1
SEALED: Final = ("schema_version", "version", "sha256")  # the keys that `seal` adds to a fit


def validate(document: object) -> Document:
    """Return the document if its shape, meaning and hash are right.

    The hash is checked last, so that a changed field is named even if the document was not hashed again.
    Raises CoefficientError at the first problem.
    """
    checked = check_unsealed(document)
    check_hash(checked)
    return checked


def check_unsealed(document: object) -> Document:
    """Return the document if its shape and meaning are right. Raises CoefficientError at the first problem."""
    shaped = check_shape(document)
    check_meaning(shaped)
    return shaped


def check_hash(document: Document) -> None:
    """Raise CoefficientError unless the stored hash is the hash of the rest."""
    right = digest(document)
    if document["sha256"] != right:
        rule = f"must be the hash of the rest, {right} (was the document changed after it was sealed?)"
        raise problem("sha256", rule, document["sha256"])


def seal(document: Document, version: int) -> Document:
    """Complete a fit: add schema_version, version and sha256, and put its keys in the schema's order.

    Parameters
    ----------
    document
        The fit, without these three.
    version
        The version to give it, from 1.

    Returns
    -------
    dict
        The complete document; the fit itself is not changed.

    Raises
    ------
    CoefficientError
        If the fit already has one of these keys, or the result is not valid.
    """
    for key in SEALED:
        if key in document:
            raise problem(key, "is set by seal and must be left out", document[key])
    sealed = {**document, "schema_version": SCHEMA_VERSION, "version": version, "sha256": "0" * 64}
    check_shape(sealed)
    sealed["sha256"] = digest(sealed)
    return _in_order(validate(sealed))


def dumps(document: Document) -> str:
    """The exact text of a valid document's file; floats round-trip bit for bit.

    Raises CoefficientError when the document is not valid.
    """
    return json.dumps(_in_order(validate(document)), indent=2, allow_nan=False) + "\n"


def parse(text: str) -> Any:
    """The JSON value of a text, not validated.

    NaN, Infinity and numbers too big become non-finite floats, which validate refuses naming their field.
    Raises CoefficientError when the text is not JSON or an object has the same key twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise CoefficientError(f"must be JSON: {error}") from None
    except RecursionError:
        raise CoefficientError("must be JSON: nested too deeply") from None


def read(path: Path) -> Document:
    """The valid document of a file. Raises CoefficientError where it is not, OSError where it cannot be read."""
    document = read_unsealed(path)
    try:
        check_hash(document)
    except CoefficientError as error:
        raise CoefficientError(f"{path}: {error}") from None
    return document


def read_unsealed(path: Path) -> Document:
    """A document whose shape, meaning and place are right; its hash is not checked.

    Raises CoefficientError when they are not, OSError when the file cannot be read.
    """
    try:
        with noted(READING):
            text = path.read_text(encoding="utf-8")
        document = check_unsealed(parse(text))
        check_place(document, path)
    except UnicodeDecodeError as error:
        raise CoefficientError(f"{path}: must be text in UTF-8: {error.reason} at byte {error.start}") from None
    except CoefficientError as error:
        raise CoefficientError(f"{path}: {error}") from None
    return document


def digest(document: Document) -> str:
    """SHA-256, in hexadecimal, of the canonical text of the document without its own sha256."""
    return hashlib.sha256(canonical(document, without=("sha256",)).encode("ascii")).hexdigest()


def canonical(document: Document, without: tuple[str, ...] = ()) -> str:
    """The document, without some of its members, in the canonical JSON that is hashed and compared."""
    rest = {key: value for key, value in document.items() if key not in without}
    return json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise problem(f"key {key!r}", "must be given once", value)
        result[key] = value
    return result


def _integer(digits: str) -> int | float:
    # float64 ends at 309 digits, and int() refuses thousands of them.
    return int(digits) if len(digits) <= 310 else math.copysign(math.inf, -1 if digits[0] == "-" else 1)


def _in_order(document: Document) -> Document:
    """A copy with keys in the schema's order, and alphabetically where the schema names none."""
    root = schema()
    ordered: Document = _sorted(document, [root, root["$defs"][document["method"]]])
    return ordered


def _sorted(value: Any, parts: list[dict[str, Any]]) -> Any:
    """The value in the key order of those parts of the schema which describe it."""
    if isinstance(value, list):
        return list(value)
    if not isinstance(value, dict):
        return value
    parts = [resolved(part["$ref"], schema()) if "$ref" in part else part for part in parts]
    properties = [part.get("properties", {}) for part in parts]
    known = [key for names in properties for key in names if key in value]
    keys = dict.fromkeys(known + sorted(value))
    return {key: _sorted(value[key], [names[key] for names in properties if key in names]) for key in keys}
