"""The shape of a document: a small interpreter of schema.json, so that the shape is written down once.

No library is used, as files must be readable where none is installed, and as two rules are stricter than JSON Schema:
an integer is written without a point, and a number is finite and within float64's range. The tests compare it with
the jsonschema package.
"""

import functools
import json
import math
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

Document = dict[str, Any]

SCHEMA_FILE: Final = Path(__file__).with_name("schema.json")


class CoefficientError(ValueError):
    """A document, file or name that breaks a rule. One line: file, field, rule, value got."""


def problem(field: str, rule: str, value: object) -> CoefficientError:
    """The error for a field that breaks a rule: «options.bits must be at most 8, got 9»."""
    return CoefficientError(f"{field or 'the document'} {rule}, got {shown(value)}")


def shown(value: object, width: int = 80) -> str:
    """A value for an error message: one line, cut to width."""
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # an integer of thousands of digits, a value inside itself
        text = f"a value of type {type(value).__name__} that cannot be printed"
    return text if len(text) <= width else text[: width - 3] + "..."


def check_shape(document: object) -> Document:
    """Return the document. Raises CoefficientError at the first field that breaks a rule of schema.json."""
    check_part(document, "", schema(), schema())
    return cast(Document, document)


@functools.cache
def schema() -> dict[str, Any]:
    """The content of schema.json; not to be changed."""
    content: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return content


def check_part(value: Any, field: str, part: dict[str, Any], root: dict[str, Any]) -> None:
    """Raise CoefficientError where the value of a field breaks this part of the schema root.

    In this order: keys and type, then members, then conditions that depend on the method, then limits.
    """
    if "$ref" in part:
        check_part(value, field, resolved(part["$ref"], root), root)
    if "type" in part:
        _check_type(value, field, part["type"])
    if isinstance(value, dict):
        _check_keys(value, field, part)
    for key, inner, inner_part in _members(value, part):
        check_part(inner, member(field, key), inner_part, root)
    for condition in part.get("allOf", ()):
        check_part(value, field, condition, root)
    if "if" in part and _holds(value, part["if"], root):
        check_part(value, field, part["then"], root)
    for word in filter(_LIMITS.__contains__, part):
        kind, satisfied, rule = _LIMITS[word]
        if (kind is None or _TYPES[kind][0](value)) and not satisfied(value, part[word]):
            raise problem(field, rule.format(part[word]), value)


def _check_type(value: Any, field: str, names: str | list[str]) -> None:
    kinds = [_TYPES[name] for name in ([names] if isinstance(names, str) else names)]
    if not any(is_kind(value) for is_kind, _ in kinds):
        raise problem(field, "must be " + " or ".join(words for _, words in kinds), value)


def _check_keys(value: dict[str, Any], field: str, part: dict[str, Any]) -> None:
    for key in part.get("required", ()):
        if key not in value:
            raise CoefficientError(f"{member(field, key)} is required, got only {shown(list(value))}")
    known = part.get("properties", {})
    for key in value if part.get("additionalProperties") is False else ():
        if key not in known:
            raise problem(member(field, key), f"is not a field (known: {', '.join(known)})", value[key])


def _members(value: Any, part: dict[str, Any]) -> list[tuple[str | int, Any, dict[str, Any]]]:
    """Key, value and part of the schema of each member that has one."""
    if isinstance(value, list) and "items" in part:
        return [(i, inner, part["items"]) for i, inner in enumerate(value)]
    if not isinstance(value, dict):
        return []
    known, rest = part.get("properties", {}), part.get("additionalProperties") or {}
    others = [(key, value[key], rest) for key in value if key not in known]
    return others + [(key, value[key], known[key]) for key in known if key in value]


def _holds(value: Any, part: dict[str, Any], root: dict[str, Any]) -> bool:
    try:
        check_part(value, "", part, root)
    except CoefficientError:
        return False
    return True


def member(field: str, key: str | int) -> str:
    """The name of a field's member: options.bits, solution.codes[3], params["a b"]."""
    if isinstance(key, int):
        return f"{field}[{key}]"
    if not key.isidentifier():
        return f"{field}[{json.dumps(key)}]"
    return f"{field}.{key}" if field else key


def resolved(target: str, root: dict[str, Any]) -> dict[str, Any]:
    """The part of the schema root that a reference such as «#/$defs/name» means."""
    return functools.reduce(operator.getitem, target.removeprefix("#/").split("/"), root)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond float64
        return False


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)  # True is not 1


_TYPES: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "object": (lambda v: isinstance(v, dict) and all(isinstance(key, str) for key in v), "an object"),
    "array": (lambda v: isinstance(v, list), "a list"),
    "string": (lambda v: isinstance(v, str), "a string"),
    "number": (_is_number, "a finite number"),
    "integer": (lambda v: isinstance(v, int) and _is_number(v), "an integer within float64's range"),
    "null": (lambda v: v is None, "null"),
}

# keyword: the type that it limits (others pass), whether a value satisfies it, and its text in an error
_LIMITS: Final[dict[str, tuple[str | None, Callable[[Any, Any], bool], str]]] = {
    "const": (None, _same, "must be {}"),
    "enum": (None, lambda v, options: any(_same(v, option) for option in options), "must be one of {}"),
    "pattern": ("string", lambda v, pattern: re.search(pattern, v) is not None, "must match {}"),
    "minLength": ("string", lambda v, n: len(v) >= n, "must have at least {} characters"),
    "minimum": ("number", operator.ge, "must be at least {}"),
    "maximum": ("number", operator.le, "must be at most {}"),
    "minItems": ("array", lambda v, n: len(v) >= n, "must have at least {} members"),
    "maxItems": ("array", lambda v, n: len(v) <= n, "must have at most {} members"),
}
