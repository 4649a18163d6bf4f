"""Reading and writing: every corrupted field is refused by name, numbers round-trip bit for bit."""

import hashlib
import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actfit.coefficients import load
from actfit.coefficients.document import dumps, parse, seal, validate
from actfit.coefficients.schema import CoefficientError
from tests.coefficients.documents import bump_fit, changed, paths, rehashed, relu_fit, without

GOOD = seal(bump_fit(), 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def refusal(document: Any) -> str:
    with pytest.raises(CoefficientError) as caught:
        validate(document)
    message = str(caught.value)
    assert "\n" not in message
    return message


def spelled(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


# For every field a value that cannot be right there.
WRONG: list[tuple[tuple[str | int, ...], Any]] = [
    (("schema_version",), 2),
    (("version",), 0),
    (("function",), "gelu"),
    (("function", "name"), ".."),
    (("function", "name"), "gelu\n"),
    (("function", "expr"), ""),
    (("function", "params"), []),
    (("function", "params", "beta"), math.nan),
    (("method",), "newbit"),
    (("options",), None),
    (("options", "bits"), 0),
    (("options", "bits"), 9),
    (("options", "levels"), "some"),
    (("options", "weight"), 1),
    (("options", "domain"), [10.0, -10.0]),
    (("options", "domain"), [2**53, 2**53 + 1]),  # equal as floats
    (("options", "domain"), [1.0]),
    (("options", "domain", 0), -math.inf),
    (("options", "domain", 1), "10"),
    (("solution",), []),
    (("solution", "borders"), {}),
    (("solution", "borders", 0), -10),  # on the domain's edge
    (("solution", "borders", 1), -3.1),  # as the one before
    (("solution", "borders", 2), -0.5),
    (("solution", "borders", 3), 10.0),
    (("solution", "codes"), [1, 0, 1, 2]),
    (("solution", "codes"), [1, 0, 1, 0, 1]),  # level 2 is not used
    (("solution", "codes", 0), -1),
    (("solution", "codes", 1), 1),  # as the one before
    (("solution", "codes", 2), 1.0),
    (("solution", "codes", 3), 3),
    (("solution", "codes", 4), True),
    (("solution", "levels"), [0.0, 0.1, 0.2, 0.3, 0.4]),
    (("solution", "levels", 0), math.inf),
    (("solution", "levels", 1), -0.2),
    (("solution", "levels", 2), None),
    (("error",), 0),
    (("error", "l2_squared"), -0.1),
    (("error", "linf"), -0.1),
    (("error", "linf_at"), None),
    (("error", "linf_at"), 10.5),
    (("error", "lower_bound"), 0.31),
    (("error", "gap"), math.nextafter(GOOD["error"]["gap"], 1)),
    (("provenance",), None),
    (("provenance", "command"), 3),
    (("provenance", "seed"), 1.5),
    (("provenance", "versions"), ["numpy"]),
    (("provenance", "versions", "actfit"), 1),
    (("provenance", "versions", "numpy"), ""),
    (("sha256",), "0" * 64),
    (("sha256",), GOOD["sha256"] + "\n"),
]


@pytest.mark.parametrize(("path", "value"), WRONG, ids=lambda part: str(part)[:60])
def test_a_corrupted_field_is_refused_by_name(path: tuple[str | int, ...], value: Any) -> None:
    document = changed(GOOD, path, value)
    assert refusal(document).startswith(spelled(path))
    if path != ("sha256",):
        assert refusal(rehashed(document)).startswith(spelled(path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inner": -0.38}, "solution.cut must have 0 < inner / output <= border / output <= outer / output"),
        ({"border": 0.375}, "solution.cut must have 0 < inner / output <= border / output <= outer / output"),
        ({"output": 0.0}, "solution.cut must have 0 < inner / output <= border / output <= outer / output"),
        ({"output": "-3/8"}, "solution.cut.output must be a finite number"),
        ({"middle": 0.0}, "solution.cut.middle is not a field (known: output, border, inner, outer)"),
    ],
)
def test_a_cut_output_is_in_order(changes: dict[str, Any], message: str) -> None:
    document = load("hardswish", "invact-bfloat16-2bit")
    wrong = changed(document, ("solution", "cut"), {**document["solution"]["cut"], **changes})
    assert refusal(rehashed(wrong)).startswith(message)


def test_a_cut_output_needs_a_second_bit() -> None:
    document = without(load("hardswish", "invact-bfloat16-2bit"), ("options", "bits"))
    assert refusal(rehashed(document)).startswith("solution.cut must be left out without options.bits")


def test_the_table_above_leaves_no_field_out() -> None:
    assert {path for path, _ in WRONG} == set(paths(GOOD))


@pytest.mark.parametrize("path", [path for path in paths(GOOD) if isinstance(path[-1], str)], ids=spelled)
def test_a_missing_or_renamed_field_is_refused(path: tuple[str | int, ...]) -> None:
    document = without(GOOD, path)
    if path[:-1] in {("function", "params"), ("provenance", "versions")}:  # free keys
        assert refusal(document).startswith("sha256 must be the hash of the rest")
        return
    assert refusal(rehashed(document) if path != ("sha256",) else document).startswith(f"{spelled(path)} is required")
    extra = (*path[:-1], "extra")
    assert refusal(rehashed(changed(GOOD, extra, 1))).startswith(f"{spelled(extra)} is not a field")


def test_linf_at_is_null_exactly_when_linf_is_zero() -> None:
    relu = seal(relu_fit(), 1)
    assert refusal(changed(relu, ("error", "linf_at"), 0.0)).startswith("error.linf_at must be null exactly when")
    assert refusal(changed(relu, ("error", "linf"), 0.1)).startswith("error.linf_at must be null exactly when")


def test_one_level_and_no_border_is_a_table() -> None:
    fit = relu_fit() | {"solution": {"borders": [], "codes": [0], "levels": [1.0]}}
    assert validate(seal(fit, 1))["solution"]["codes"] == [0]


def test_the_hash_is_the_published_recipe() -> None:
    rest = {key: value for key, value in GOOD.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    assert GOOD["sha256"] == hashlib.sha256(text.encode()).hexdigest()


def test_the_text_is_readable_and_in_order() -> None:
    text = dumps(dict(reversed(GOOD.items())) | {"error": dict(reversed(GOOD["error"].items()))})
    assert text == dumps(GOOD)
    assert text.isascii()
    assert text.endswith("}\n")
    assert '\n  "function": {\n    "name": "bump",\n    "expr"' in text


@pytest.mark.parametrize("key", ["schema_version", "version", "sha256"])
def test_seal_refuses_what_it_sets(key: str) -> None:
    with pytest.raises(CoefficientError, match=f"^{key} is set by seal"):
        seal(relu_fit() | {key: 1}, 1)


def test_seal_and_dumps_refuse_what_is_not_valid() -> None:
    with pytest.raises(CoefficientError, match=r"^version must be at least 1, got 0"):
        seal(relu_fit(), 0)
    with pytest.raises(CoefficientError, match=r"^solution.codes must use every level"):
        seal(changed(relu_fit(), ("solution", "levels"), [0.0, 1.0, 1.0]) | {"options": bump_fit()["options"]}, 1)
    with pytest.raises(CoefficientError, match=r"^sha256 must be the hash"):
        dumps(changed(GOOD, ("provenance", "seed"), 8))


def test_seal_leaves_its_argument_alone() -> None:
    fit = bump_fit()
    sealed = seal(fit, 1)
    sealed["solution"]["borders"].append(1.0)
    sealed["function"]["params"]["beta"] = 0
    assert fit == bump_fit()


def bits(values: list[float]) -> list[bytes]:
    return [struct.pack("<d", value) for value in values]


@given(st.lists(FLOATS, min_size=2, max_size=8).map(sorted), st.dictionaries(st.text(), FLOATS, max_size=3))
def test_floats_round_trip_bit_for_bit(levels: list[float], params: dict[str, float]) -> None:
    fit = relu_fit()
    fit["function"]["params"] = params
    fit["options"]["bits"] = 3
    n = len(levels)
    fit["solution"] = {"borders": [float(i) for i in range(1, n)], "codes": list(range(n)), "levels": levels}
    document = validate(parse(dumps(seal(fit, 1))))
    assert bits(document["solution"]["levels"]) == bits(levels)
    assert bits([document["function"]["params"][key] for key in params]) == bits(list(params.values()))
    assert dumps(document) == dumps(seal(fit, 1))


@given(st.floats(0, allow_infinity=False), st.floats(0, 1))
def test_gap_is_what_float64_gives(squared: float, share: float) -> None:
    bound = squared * share
    fit = bump_fit()
    fit["error"] |= {
        "l2_squared": squared,
        "lower_bound": bound,
        "gap": (squared - bound) / squared if squared else 0.0,
    }
    text = dumps(seal(fit, 1))
    assert validate(parse(text))["error"] == fit["error"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be JSON: Expecting value: line 1 column 1"),
        ("\ufeff{}", "must be JSON: Unexpected UTF-8 BOM"),
        ('{"a": 1} x', "must be JSON: Extra data"),
        ('{"a": {"bits": 1, "bits": 2}}', "key 'bits' must be given once, got 2"),
        ("[" * 100_000, "must be JSON: nested too deeply"),
    ],
)
def test_text_that_is_not_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(CoefficientError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-1e999", "1" * 400, "-" + "9" * 6000, "true"])
def test_non_finite_numbers_are_refused_in_text(literal: str) -> None:
    text = dumps(GOOD).replace(f'"linf": {GOOD["error"]["linf"]!r}', f'"linf": {literal}')
    assert refusal(parse(text)).startswith("error.linf must be a finite number, got ")


def test_half_a_surrogate_pair_is_refused_wherever_text_is() -> None:
    """JSON spells it as \\ud800; no page and no file name can hold it."""
    texts = [path for path in paths(GOOD) if isinstance(at(GOOD, path), str) and path != ("sha256",)]
    assert len(texts) >= 6
    for path in texts:
        message = refusal(rehashed(changed(GOOD, path, "\ud800")))
        assert message.startswith((spelled(path), "options.")), message
    for path in (("provenance", "command"), ("provenance", "versions", "actfit"), ("function", "expr")):
        assert refusal(changed(GOOD, path, "a\udfff")).startswith(f"{spelled(path)} must be text, without half a")
    for path, value in ((("provenance", "versions"), "1"), (("function", "params"), 1.0)):
        assert "must be text, without half a surrogate pair" in refusal(changed(GOOD, path, {"a\ud800": value}))
    whole = parse(json.dumps(changed(GOOD, ("provenance", "command"), "\U0001f600")))
    assert validate(rehashed(whole))  # both halves are one character


def at(document: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


@pytest.mark.parametrize("label", ["samples:abc", "samples:", "samples:0123456789ABCDEF", "samples:0123456789abcdef0"])
def test_samples_are_named_by_sixteen_digits(label: str) -> None:
    assert refusal(changed(GOOD, ("options", "weight"), label)).startswith("options.weight must be samples: and the")
    assert validate(rehashed(changed(GOOD, ("options", "weight"), "samples:0123456789abcdef")))
