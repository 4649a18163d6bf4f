"""File name, folder and content agree, in load and in check; and a file's numbers fit the function that it names."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from actfit.coefficients import CoefficientError, available, load, publish, store
from actfit.coefficients.__main__ import run
from actfit.coefficients.document import seal
from actfit.coefficients.naming import check_name, file_name
from actfit.coefficients.reference import check_function, check_numbers
from actfit.coefficients.store import DATA, write
from tests.coefficients.documents import bump_fit, changed, rehashed, relu_fit

BUMP = "fewbit-2bit-shared-beta=1.5-norm_0_2"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A copy of gelu's packaged files, to be corrupted."""
    shutil.copytree(DATA / "gelu", tmp_path / "gelu")
    return tmp_path


def test_every_packaged_file_is_named_as_it_says() -> None:
    assert len(available()) > 100
    for entry in available():
        document = load(entry.path)
        own = document["options"].get("domain", ())  # of the weight: all that is shipped is on it
        assert file_name(document, own) == entry.name
        check_function(document)
        check_numbers(document)


@pytest.mark.parametrize(
    ("first_name", "second_name"),
    [("fewbit-5bit.v1", "fewbit-6bit.v1"), ("invact-float16.v1", "invact-float32-published.v1")],
)
def test_exchanged_files_are_refused(
    first_name: str, second_name: str, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (data / "gelu" / f"{name}.json" for name in (first_name, second_name))
    texts = first.read_text(), second.read_text()
    first.write_text(texts[1])
    second.write_text(texts[0])
    said = {first: second_name.removesuffix(".v1"), second: first_name.removesuffix(".v1")}
    for path, right in said.items():
        name = path.name.removesuffix(".v1.json")
        with pytest.raises(
            CoefficientError, match=f"the file's name must be what the document says, '{right}', got '{name}'$"
        ):
            load(path)
        with pytest.raises(CoefficientError, match="the file's name must be"):
            load("gelu", name, root=data)
        monkeypatch.chdir(path.parent)
        with pytest.raises(CoefficientError, match="the file's name must be"):
            load(path.name)  # however the folder is spelled
    assert run(["check", "--no-recompute", str(first), str(second)]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 files, 2 bad")


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        (("options", "bits"), 3, BUMP.replace("2bit", "3bit")),
        (("options", "levels"), "best", BUMP.replace("-shared", "")),
        (("options", "weight"), "samples:0123456789abcdef", BUMP.replace("norm_0_2", "samples_0123456789abcdef")),
        (("function", "params"), {}, BUMP.replace("-beta=1.5", "")),
    ],
)
def test_each_option_is_in_the_name(field: tuple[str, ...], value: Any, name: str, tmp_path: Path) -> None:
    assert file_name(bump_fit()) == BUMP
    other = changed(bump_fit(), field, value)
    assert file_name(other) == name
    publish(other, name, tmp_path)
    with pytest.raises(CoefficientError, match="the file's name must be what the document says"):
        publish(other, BUMP, tmp_path)


def test_a_domain_is_named_where_it_is_not_the_weights_own() -> None:
    uniform = changed(bump_fit(), ("options", "weight"), "uniform")
    narrow = changed(changed(uniform, ("options", "domain"), [-5, 5]), ("options", "levels"), "best")
    assert file_name(narrow) == "fewbit-2bit-beta=1.5-domain=-5.0_5.0"
    check_name(narrow, "fewbit-2bit-beta=1.5-domain=-5.0_5.0")
    with pytest.raises(CoefficientError, match="the file's name"):
        check_name(narrow, "fewbit-2bit-beta=1.5")
    # Only scipy knows a distribution's own domain.
    normal = changed(narrow, ("options", "weight"), "norm")
    for name in ("fewbit-2bit-beta=1.5-norm", "fewbit-2bit-beta=1.5-norm-domain=-5.0_5.0"):
        check_name(normal, name)
    with pytest.raises(CoefficientError, match="the file's name"):
        check_name(normal, "fewbit-2bit-beta=1.5-norm-domain=-6.0_6.0")


def test_options_of_invact_are_in_the_name() -> None:
    document = load("gelu", "invact-bfloat16")
    cases: list[tuple[tuple[str, ...], Any, str]] = [
        (("options", "engine"), "minimax+template+operon", "-minimax+template+operon"),
        (("options", "engine"), "closed", ""),
        (("options", "engine"), "adapted", ""),
        (("options", "budget"), 3, "-budget=3"),
        (("options", "weight"), "laplace", "-laplace"),
        (("options", "max_error"), 1, "-max-error=1.0"),
        (("options", "bits"), 2, "-2bit"),
        (("provenance", "seed"), 7, "-seed=7"),
    ]
    for field, value, end in cases:
        other = changed(document, field, value)
        assert file_name(other) == f"invact-bfloat16{end}"
        check_name(other, f"invact-bfloat16{end}")
        if end:
            with pytest.raises(CoefficientError, match="the file's name"):
                check_name(other, "invact-bfloat16")
    check_name(document, "invact-bfloat16-imported-templates=0123abcd")  # which no document holds


def test_names_that_claim_nothing_are_free(tmp_path: Path) -> None:
    for name in ("a", "fewbit", "mine-3bit", "invactive-a", "a-fewbit-9bit"):
        assert publish(relu_fit(), name, tmp_path).written
    free = tmp_path / "fewbit-9bit.json"
    write(seal(relu_fit(), 1), free)
    assert load(free)["options"]["bits"] == 1
    entry = store.publish(relu_fit(), "fewbit-1bit", tmp_path).path
    (tmp_path / "my files").mkdir()  # not a function's name, so only the file's name is checked
    shutil.copy(entry, tmp_path / "my files" / "fewbit-2bit.v1.json")
    with pytest.raises(CoefficientError, match="the file's name must be what the document says, 'fewbit-1bit'"):
        load(tmp_path / "my files" / "fewbit-2bit.v1.json")


def test_another_function_under_a_name_of_the_catalogue() -> None:
    document = load("gelu", "fewbit-3bit")
    with pytest.raises(CoefficientError, match=r"^function.expr must be 'x\*Phi\(x\)' where the name is 'gelu'; call"):
        check_function(changed(document, ("function", "expr"), "tanh(x)"))
    with pytest.raises(CoefficientError, match=r"^function.params must be those of gelu: \[\], got \{'a': 1\}$"):
        check_function(changed(document, ("function", "params"), {"a": 1}))
    check_function(bump_fit())  # which the catalogue does not have


@pytest.mark.parametrize("level", [0, 7])
@pytest.mark.parametrize("by", [-10.0, 10.0])
def test_levels_that_no_derivative_has(level: int, by: float) -> None:
    document = load("gelu", "fewbit-3bit")
    value = document["solution"]["levels"][level] + by
    forged = changed(document, ("solution", "levels", level), value)
    with pytest.raises(CoefficientError, match=rf"^solution.levels\[{level}\] must be a value that the derivative of"):
        check_numbers(forged)
    check_numbers(changed(forged, ("function", "name"), "own"))  # of which nothing is known


def test_a_table_of_another_function() -> None:
    """tanh's table under gelu's name: its levels are values of gelu' too."""
    forged = changed(load("tanh", "fewbit-3bit"), ("function",), {"name": "gelu", "expr": "x*Phi(x)", "params": {}})
    check_function(forged)
    with pytest.raises(CoefficientError, match=r"^solution must be within error.linf of the derivative of gelu, which"):
        check_numbers(forged)


@pytest.mark.parametrize("part", ["border_side", "x", "y", "direction"])
def test_sides_of_another_function(part: str) -> None:
    document = load("gelu", "invact-float32")
    places: dict[str, tuple[tuple[str | int, ...], Any]] = {
        "border_side": (("solution", "border_side"), "left"),
        "x": (("solution", "branches", 0, "x"), [None, -0.5]),
        "y": (("solution", "branches", 1, "y"), [0.0, None]),
        "direction": (("solution", "branches", 1, "direction"), -1),
    }
    with pytest.raises(CoefficientError, match=r"^solution must have border and branches as the packaged file has"):
        check_numbers(changed(document, *places[part]))


def test_check_compares_with_the_packaged_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = load("gelu", "fewbit-3bit")
    forged = rehashed(changed(document, ("solution", "levels", 7), 8.0))
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(forged))
    assert run(["check", "--no-recompute", str(path)]) == 1
    assert "solution.levels[7] must be a value that the derivative of gelu has" in capsys.readouterr().out
