"""The shape: schema.json is a valid schema, and our interpreter agrees with the jsonschema package."""

import math
from functools import cache
from importlib import import_module
from typing import Any

import pytest

from actfit.coefficients.__main__ import JUDGES
from actfit.coefficients.document import seal
from actfit.coefficients.meaning import METHODS
from actfit.coefficients.schema import CoefficientError, check_part, check_shape, schema, shown
from tests.coefficients.documents import bump_fit, changed, paths, relu_fit, without

GOOD = seal(bump_fit(), 1)
BEYOND = [math.nan, math.inf, -math.inf, 10**400, -(10**5000)]  # not finite in float64


def package() -> Any:
    """jsonschema, imported late: it takes more than a second, and all processes of a run import this module."""
    return import_module("jsonschema")


@cache
def strict_validator() -> Any:
    """The jsonschema package with the two rules in which we are stricter (see coefficients/schema.py)."""

    def number(checker: Any, value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

    def integer(checker: Any, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    base = package().Draft202012Validator
    types = base.TYPE_CHECKER.redefine_many({"number": number, "integer": integer})
    return package().validators.extend(base, type_checker=types)(schema())


def accepted(document: Any) -> bool:
    try:
        check_shape(document)
    except CoefficientError:
        return False
    return True


def test_schema_file_is_a_valid_2020_12_schema() -> None:
    assert schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    package().Draft202012Validator.check_schema(schema())


def test_every_method_has_its_parts() -> None:
    methods = schema()["properties"]["method"]["enum"]
    branches = {part["if"]["properties"]["method"]["const"]: part["then"]["$ref"] for part in schema()["allOf"]}
    assert branches == {method: f"#/$defs/{method}" for method in methods}
    assert set(methods) == set(METHODS) == set(JUDGES)
    for method in methods:
        assert set(schema()["$defs"][method]["properties"]) == {"options", "solution", "error"}


@pytest.mark.parametrize("fit", [relu_fit(), bump_fit()], ids=["relu", "bump"])
def test_both_accept_a_true_document(fit: dict[str, Any]) -> None:
    document = seal(fit, 1)
    assert accepted(document)
    assert strict_validator().is_valid(document)
    assert package().Draft202012Validator(schema()).is_valid(document)


@pytest.mark.parametrize("path", paths(GOOD), ids=lambda path: ".".join(map(str, path)))
def test_agrees_with_the_jsonschema_package_at_every_field(path: tuple[str | int, ...]) -> None:
    texts = ("", "x", "fewbit", "a..b", "gelu\n")
    values = [None, True, -1, 0, 1, 1.5, 9, 300, *texts, [], [1.0], [1, 2, 3], {}, {"a": 1}]
    for document in [without(GOOD, path), *(changed(GOOD, path, value) for value in values)]:
        assert accepted(document) == strict_validator().is_valid(document), document


@pytest.mark.parametrize("value", [*BEYOND, True, 1.0, "1", None, [1]], ids=shown)
def test_what_is_not_a_plain_integer_is_refused(value: Any) -> None:
    for path in [("version",), ("options", "bits"), ("solution", "codes", 0)]:
        with pytest.raises(CoefficientError, match=r"must be an integer"):
            check_shape(changed(GOOD, path, value))


@pytest.mark.parametrize("value", [*BEYOND, True, "1", [1.0]], ids=shown)
def test_what_is_not_a_finite_number_is_refused(value: Any) -> None:
    places = [
        ("options", "domain", 1),
        ("solution", "borders", 2),
        ("error", "linf_at"),
        ("function", "params", "beta"),
    ]
    for path in places:
        with pytest.raises(CoefficientError, match="must be a finite number"):
            check_shape(changed(GOOD, path, value))


def keywords(part: dict[str, Any]) -> set[str]:
    """The keywords of a schema and of the schemas inside it."""
    inside = [*part.get("properties", {}).values(), *part.get("$defs", {}).values(), *part.get("allOf", ())]
    inside += [part[key] for key in ("items", "additionalProperties", "if", "then") if isinstance(part.get(key), dict)]
    return set(part).union(*map(keywords, inside))


def test_the_schema_uses_only_keywords_that_are_checked() -> None:
    notes = {"$schema", "$id", "$comment", "title", "description", "$defs"}
    checked = {"$ref", "type", "required", "additionalProperties", "properties", "items", "allOf", "if", "then"}
    limits = {"const", "enum", "pattern", "minLength", "minimum", "maximum", "minItems", "maxItems"}
    assert keywords(schema()) == notes | checked | limits


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "the document must be an object, got []"),
        (
            changed(GOOD, ("options", "levels"), "most"),
            "options.levels must be one of ['best', 'contiguous', 'shared', 'even'], got 'most'",
        ),
        (
            changed(GOOD, ("function", "params", "a b\n"), "1"),
            "function.params[\"a b\\n\"] must be a finite number, got '1'",
        ),
        (
            changed(GOOD, ("error", "l1"), 2),
            "error.l1 is not a field (known: l2_squared, linf, linf_at, lower_bound, gap), got 2",
        ),
        (without(GOOD, ("solution", "codes")), "solution.codes is required, got only ['borders', 'levels']"),
    ],
)
def test_messages_name_field_rule_and_value(document: Any, message: str) -> None:
    with pytest.raises(CoefficientError) as caught:
        check_shape(document)
    assert str(caught.value) == message


@pytest.mark.parametrize("part", [{"const": 1}, {"enum": [0, 1]}])
def test_true_is_not_one(part: dict[str, Any]) -> None:
    check_part(1, "a", part, part)
    with pytest.raises(CoefficientError, match=r"^a must be .*, got True$"):
        check_part(True, "a", part, part)


def test_shown_values_are_one_short_line() -> None:
    class Lines:
        def __repr__(self) -> str:
            return "a\n   b"

    inside: list[Any] = []
    inside.append(inside)
    assert shown(Lines()) == "a b"
    assert shown("x\ny") == r"'x\ny'"
    assert len(shown("x" * 1000)) == 80
    assert "int" in shown(10**5000)
    assert shown(inside) == "[[...]]"
