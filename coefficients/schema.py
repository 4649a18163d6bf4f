"""The shape of a document: a small interpreter of schema.json, so that the shape is written down once.

Only the keywords which schema.json uses are known; any other raises when the schema is read, so that no
rule is skipped in silence. Two things are stricter than in JSON Schema: an integer is written without a
point, and a number is finite and within float64's range.
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
Check = Callable[[Any, str], None]

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
    """The document itself. Raises CoefficientError at the first field that is not as schema.json says."""
    _checker()(document, "")
    return cast(Document, document)


@functools.cache
def schema() -> dict[str, Any]:
    """The content of schema.json; not to be changed."""
    content: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return content


@functools.cache
def _checker() -> Check:
    return compiled(schema(), schema())


def compiled(part: dict[str, Any], root: dict[str, Any]) -> Check:
    """A function of (value, field) that raises CoefficientError where the value breaks this part of root.

    Raises NotImplementedError for a keyword that this module does not know, wherever it stands.
    """
    unknown = part.keys() - _RULES.keys() - _LIMITS.keys() - _NO_RULE
    if unknown:
        raise NotImplementedError(f"{SCHEMA_FILE.name}: keyword {min(unknown)!r} is not known to {__name__}")
    checks = [make(part[word], part, root) for word, make in _RULES.items() if word in part]
    checks += [_limit(word, part[word]) for word in _LIMITS if word in part]

    def check(value: Any, field: str) -> None:
        for one in checks:
            one(value, field)

    return check


# Words without a rule of their own; `then` is read by `if`.
_NO_RULE: Final = frozenset({"$schema", "$id", "$comment", "title", "description", "then"})


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond float64
        return False


_TYPES: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "object": (lambda v: isinstance(v, dict) and all(isinstance(key, str) for key in v), "an object"),
    "array": (lambda v: isinstance(v, list), "a list"),
    "string": (lambda v: isinstance(v, str), "a string"),
    "number": (_is_number, "a finite number"),
    "integer": (lambda v: isinstance(v, int) and _is_number(v), "an integer within float64's range"),
    "null": (lambda v: v is None, "null"),
}


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)  # True is not 1


# keyword: the type it speaks of (others pass), whether a value keeps it, and how it reads
_LIMITS: Final[dict[str, tuple[str | None, Callable[[Any, Any], bool], str]]] = {
    "const": (None, _same, "must be {}"),
    "enum": (None, lambda v, options: any(_same(v, one) for one in options), "must be one of {}"),
    "pattern": ("string", lambda v, pattern: re.search(pattern, v) is not None, "must match {}"),
    "minLength": ("string", lambda v, n: len(v) >= n, "must have at least {} characters"),
    "minimum": ("number", operator.ge, "must be at least {}"),
    "maximum": ("number", operator.le, "must be at most {}"),
    "minItems": ("array", lambda v, n: len(v) >= n, "must have at least {} members"),
    "maxItems": ("array", lambda v, n: len(v) <= n, "must have at most {} members"),
}


def _limit(word: str, bound: Any) -> Check:
    kind, keeps, rule = _LIMITS[word]
    applies = _TYPES[kind][0] if kind else lambda v: True

    def check(value: Any, field: str) -> None:
        if applies(value) and not keeps(value, bound):
            raise problem(field, rule.format(bound), value)

    return check


def member(field: str, key: str) -> str:
    if not key.isidentifier():
        return f"{field}[{json.dumps(key)}]"
    return f"{field}.{key}" if field else key


def _type(names: str | list[str], part: Document, root: Document) -> Check:
    kinds = [_TYPES[name] for name in ([names] if isinstance(names, str) else names)]
    rule = "must be " + " or ".join(words for _, words in kinds)

    def check(value: Any, field: str) -> None:
        if not any(test(value) for test, _ in kinds):
            raise problem(field, rule, value)

    return check


def _required(keys: list[str], part: Document, root: Document) -> Check:
    def check(value: Any, field: str) -> None:
        for key in keys:
            if isinstance(value, dict) and key not in value:
                raise CoefficientError(f"{member(field, key)} is required, got only {shown(list(value))}")

    return check


def _additional(rest: bool | Document, part: Document, root: Document) -> Check:
    known = part.get("properties", {})
    check_rest = compiled(rest, root) if isinstance(rest, dict) else None

    def check(value: Any, field: str) -> None:
        for key in value if isinstance(value, dict) and rest is not True else ():
            if key in known:
                continue
            if check_rest is None:
                raise problem(member(field, key), f"is not a field (known: {', '.join(known)})", value[key])
            check_rest(value[key], member(field, key))

    return check


def _properties(parts: Document, part: Document, root: Document) -> Check:
    checks = {key: compiled(sub, root) for key, sub in parts.items()}

    def check(value: Any, field: str) -> None:
        for key, one in checks.items():
            if isinstance(value, dict) and key in value:
                one(value[key], member(field, key))

    return check


def _items(sub: Document, part: Document, root: Document) -> Check:
    one = compiled(sub, root)

    def check(value: Any, field: str) -> None:
        for i, member in enumerate(value if isinstance(value, list) else ()):
            one(member, f"{field}[{i}]")

    return check


def _all_of(parts: list[Document], part: Document, root: Document) -> Check:
    checks = [compiled(sub, root) for sub in parts]

    def check(value: Any, field: str) -> None:
        for one in checks:
            one(value, field)

    return check


def _if(condition: Document, part: Document, root: Document) -> Check:
    holds, then = compiled(condition, root), compiled(part.get("then", {}), root)

    def check(value: Any, field: str) -> None:
        try:
            holds(value, field)
        except CoefficientError:
            return
        then(value, field)

    return check


def _ref(target: str, part: Document, root: Document) -> Check:
    return compiled(resolved(target, root), root)


def resolved(target: str, root: dict[str, Any]) -> dict[str, Any]:
    """The part of the schema root that a reference such as «#/$defs/name» means."""
    return functools.reduce(operator.getitem, target.removeprefix("#/").split("/"), root)


def _defs(parts: Document, part: Document, root: Document) -> Check:
    for sub in parts.values():  # so that an unknown keyword is found in a part that nothing refers to
        compiled(sub, root)
    return _all_of([], part, root)


# In the order of checking: what is there, then what it holds, then what depends on the method.
_RULES: Final[dict[str, Callable[[Any, Document, Document], Check]]] = {
    "$defs": _defs,
    "$ref": _ref,
    "type": _type,
    "required": _required,
    "additionalProperties": _additional,
    "properties": _properties,
    "items": _items,
    "allOf": _all_of,
    "if": _if,
}
