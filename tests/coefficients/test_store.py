"""The folder of files: find, load, publish; nothing half-written, nothing published changed."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actfit import coefficients
from actfit.coefficients import CoefficientError, available, load, publish, store
from actfit.coefficients.document import dumps, seal
from tests.coefficients.documents import bump_fit, changed, relu_fit


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def versions(fit: dict[str, Any], **others: str) -> dict[str, Any]:
    return changed(fit, ("provenance", "versions"), {"actfit": "0.1.0", **others})


def test_publish_writes_finds_and_counts(tmp_path: Path) -> None:
    root = tmp_path / "not" / "there yet"
    first = publish(relu_fit(), "fewbit-1bit", root)
    assert first == store.Published(root / "relu" / "fewbit-1bit.v1.json", written=True)
    text = first.path.read_bytes()
    assert text.decode() == dumps(seal(relu_fit(), 1))

    again = publish(versions(relu_fit(), numpy="9.9"), "fewbit-1bit", root)
    assert again == store.Published(first.path, written=False)

    other = changed(relu_fit(), ("provenance", "seed"), 3)
    second = publish(other, "fewbit-1bit", root)
    assert second == store.Published(root / "relu" / "fewbit-1bit.v2.json", written=True)
    assert load(second.path)["version"] == 2
    assert publish(other, "fewbit-1bit", root) == store.Published(second.path, written=False)

    third = publish(relu_fit(), "fewbit-1bit", root)  # as v1, but v2 is the newest
    assert third.path.name == "fewbit-1bit.v3.json"
    assert first.path.read_bytes() == text
    assert files(root) == [f"relu/fewbit-1bit.v{n}.json" for n in (1, 2, 3)]


def test_a_new_version_follows_the_newest_in_number_not_in_letters(tmp_path: Path) -> None:
    (tmp_path / "relu").mkdir()
    for version in (2, 10):
        store.write(seal(relu_fit(), version), tmp_path / "relu" / f"a.v{version}.json")
    fit = changed(relu_fit(), ("provenance", "seed"), 1)
    assert publish(fit, "a", tmp_path).path.name == "a.v11.json"
    assert load("relu", "a", root=tmp_path)["version"] == 11


@pytest.mark.parametrize("field", ["function", "options", "solution", "error", "provenance"])
def test_any_difference_in_content_makes_a_new_version(field: str, tmp_path: Path) -> None:
    places: dict[str, tuple[tuple[str | int, ...], Any]] = {
        "function": (("function", "params", "beta"), 2),
        "options": (("options", "domain", 0), -10.0),  # was -10: other bytes
        "solution": (("solution", "borders", 0), -3.1000000000000005),
        "error": (("error", "linf_at"), 0.1),
        "provenance": (("provenance", "command"), None),
    }
    publish(bump_fit(), "a", tmp_path)
    assert publish(changed(bump_fit(), *places[field]), "a", tmp_path).path.name == "a.v2.json"


@pytest.mark.parametrize("name", ["", "..", "a..b", "../a", "/a", "-a", "a\n", "ä", None])
def test_names_that_could_leave_the_folder_are_refused(name: Any, tmp_path: Path) -> None:
    with pytest.raises(CoefficientError, match=r"^name must begin with a letter or digit"):
        publish(relu_fit(), name, tmp_path)
    with pytest.raises(CoefficientError, match=r"^function.name must "):
        publish(changed(relu_fit(), ("function", "name"), name), "a", tmp_path)
    assert files(tmp_path) == []


def test_publish_does_not_build_on_a_spoilt_newest_version(tmp_path: Path) -> None:
    path = publish(relu_fit(), "a", tmp_path).path
    path.write_text(path.read_text().replace("0.1.0", "0.1.1"))
    with pytest.raises(CoefficientError, match=r"a\.v1\.json: sha256 must be"):
        publish(bump_fit() | {"function": relu_fit()["function"]}, "a", tmp_path)
    assert files(tmp_path) == ["relu/a.v1.json"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_nothing_half_written_is_left(
    step: str, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(relu_fit(), "a", tmp_path)
    before = (tmp_path / "relu" / "a.v1.json").read_bytes()

    def fail(*arguments: object) -> None:
        raise error("stop")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(error):
            publish(changed(relu_fit(), ("provenance", "seed"), 1), "a", tmp_path)
        with pytest.raises(error):
            store.write(seal(relu_fit(), 1), tmp_path / "relu" / "a.v1.json")
    assert files(tmp_path) == ["relu/a.v1.json"]
    assert (tmp_path / "relu" / "a.v1.json").read_bytes() == before


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_files_have_the_permissions_of_any_other_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    path = publish(relu_fit(), "a", tmp_path).path
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


def test_load_by_function_and_name_takes_the_newest_or_the_named_version(tmp_path: Path) -> None:
    first = publish(relu_fit(), "a", tmp_path).path
    second = publish(changed(relu_fit(), ("provenance", "seed"), 1), "a", tmp_path).path
    assert load("relu", "a", root=tmp_path) == load(second) == load(str(second))
    assert load("relu", "a", root=tmp_path, version=1) == load(first)
    with pytest.raises(CoefficientError, match=r"^version of relu a must be one of 1, 2, got 3$"):
        load("relu", "a", root=tmp_path, version=3)


def test_unknown_names_get_the_nearest(tmp_path: Path) -> None:
    publish(relu_fit(), "fewbit-1bit", tmp_path)
    publish(bump_fit(), "custom-2bit", tmp_path)
    with pytest.raises(CoefficientError, match=r"nearest: relu\), got 'relo'$"):
        load("relo", "fewbit-1bit", root=tmp_path)
    with pytest.raises(CoefficientError, match=r"nearest: bump, relu\), got 'zzz'$"):
        load("zzz", "fewbit-1bit", root=tmp_path)
    with pytest.raises(CoefficientError, match=r"name of a relu file .*nearest: fewbit-1bit\), got 'custom-2bit'$"):
        load("relu", "custom-2bit", root=tmp_path)
    with pytest.raises(CoefficientError, match="there are no files at all"):
        load("relu", "../relu", root=tmp_path / "empty")


def test_load_of_a_path_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"by function: load\(function, name\)"):
        load("relu")
    with pytest.raises(TypeError, match="not with a path"):
        load(tmp_path, version=1)
    with pytest.raises(IsADirectoryError):
        load(tmp_path)
    path = tmp_path / "x.json"
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(CoefficientError, match=r"x\.json: must be text in UTF-8: .* at byte 7$"):
        load(path)
    path.write_text("[1, 2]")
    with pytest.raises(CoefficientError, match=r"x\.json: the document must be an object, got \[1, 2\]$"):
        load(path)


def test_a_file_in_the_wrong_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = publish(relu_fit(), "a", tmp_path).path.read_text()
    (tmp_path / "relu" / "a.v2.json").write_text(text)
    with pytest.raises(CoefficientError, match=r"version must be that of the file's name, 2, got 1$"):
        load("relu", "a", root=tmp_path)
    (tmp_path / "gelu").mkdir()
    (tmp_path / "gelu" / "a.v1.json").write_text(text)
    with pytest.raises(
        CoefficientError, match=r"function.name must be the name of the file's folder, 'gelu', got 'relu'$"
    ):
        load(tmp_path / "gelu" / "a.v1.json")
    monkeypatch.chdir(tmp_path / "gelu")
    with pytest.raises(CoefficientError, match=r"^a.v1.json: function.name"):
        load("a.v1.json")
    free = tmp_path / "anything.json"  # a name without claims
    free.write_text(text)
    assert load(free)["function"]["name"] == "relu"


def test_available_sorts_and_passes_over_other_files(tmp_path: Path) -> None:
    for name in ("b", "a", "a.v2"):
        publish(relu_fit(), name, tmp_path)
    publish(bump_fit(), "a", tmp_path)
    for other in ("readme.json", "a.v0.json", "a.v01.json", ".hidden.v1.json", "a.v1.json~", "a.v1.txt"):
        (tmp_path / "relu" / other).touch()
    entries = [(e.function, e.name, e.version) for e in available(tmp_path)]
    assert entries == [("bump", "a", 1), ("relu", "a", 1), ("relu", "a.v2", 1), ("relu", "b", 1)]
    assert all(entry.path.is_file() for entry in available(tmp_path))
    assert available(tmp_path / "none") == []


def test_the_package_needs_the_standard_library_alone() -> None:
    folder = Path(coefficients.__file__).parents[1]
    script = f"import sys; sys.path[:0] = [{str(folder)!r}]; "
    script += "from actfit import coefficients; import actfit.coefficients.__main__; print(coefficients.__all__)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "['CoefficientError', 'available', 'load', 'publish']\n"
