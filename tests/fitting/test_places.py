"""Where fits are written: shipped ones not at all, others to the user's data or below --root; never to the package."""

import subprocess
import sys
from pathlib import Path

import pytest

from actfit import coefficients
from actfit.coefficients import store
from actfit.coefficients.__main__ import run as run_coefficients
from actfit.fitting.fewbit.__main__ import run as fewbit
from actfit.fitting.invact.__main__ import run as invact
from actfit.fitting.options import user_root

ROOT = Path(coefficients.__file__).parents[1]
RELU = ["--fn", "relu", "--bits", "1"]
OWN = ["--expr", "2*where(x > 0, x, 0)", "--name", "twice"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of user data for one test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def package() -> list[tuple[str, int]]:
    """Names and times of the packaged files."""
    return sorted((str(path), path.stat().st_mtime_ns) for path in store.DATA.rglob("*"))


def last(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
def test_what_ships_is_found_and_not_written(home: Path) -> None:
    """In the checkout the printed path is relative, elsewhere absolute."""
    path, elsewhere = "relu/fewbit-1bit.v1.json", home.parent / "elsewhere"
    elsewhere.mkdir()
    for folder, shown in ((ROOT, f"coefficients/data/{path}"), (elsewhere, str(store.DATA / path))):
        call = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); import runpy; "]
        call[-1] += "runpy.run_module('actfit.fitting.fewbit', run_name='__main__')"
        done = subprocess.run([*call, *RELU], cwd=folder, capture_output=True, encoding="utf-8", check=True)
        assert done.stdout.splitlines()[-1] == f"file    found the same in {shown}"
    assert not home.exists()
    assert not [*elsewhere.iterdir()]


def test_own_fits_go_to_the_users_data(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    package: list[tuple[str, int]],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert user_root().is_relative_to(home)
    table = user_root() / "twice" / "fewbit-1bit.v1.json"
    assert fewbit([*OWN, "--bits", "1"]) == 0
    assert last(capsys) == f"file    wrote {table}"
    assert fewbit([*OWN, "--bits", "1"]) == 0
    assert last(capsys) == f"file    found the same in {table}"
    assert invact([*OWN, "--dtype", "float32"]) == 0
    assert last(capsys) == f"file    wrote {user_root() / 'twice' / 'invact-float32.v1.json'}"
    # A fit of the catalogue's, but not by default.
    assert fewbit([*RELU, "--domain", "-1", "1"]) == 0
    assert last(capsys) == f"file    wrote {user_root() / 'relu' / 'fewbit-1bit-domain=-1.0_1.0.v1.json'}"
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert package == sorted((str(path), path.stat().st_mtime_ns) for path in store.DATA.rglob("*"))
    # Both commands that show files can see them.
    assert run_coefficients(["list", "--root", str(user_root())]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if line] == [
        *("function", "relu", "twice"),
        *("function", "twice"),
    ]
    assert run_coefficients(["check", "--root", str(user_root())]) == 0
    assert last(capsys) == "3 files, 0 bad"


@pytest.mark.slow
def test_root_names_the_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below --root shipped fits are written too: so the files of a checkout are made."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine" / "relu" / "fewbit-1bit.v1.json"
    assert fewbit([*RELU, "--root", "mine"]) == 0
    assert last(capsys) == f"file    wrote {path}"
    assert path.read_bytes() == (store.DATA / "relu" / path.name).read_bytes()
    assert invact(["--all", "--engine", "published", "--dtype", "float32", "--root", "mine", "--quiet"]) == 0
    assert (tmp_path / "mine" / "gelu" / "invact-float32-published.v1.json").is_file()
    assert not home.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--root", "a", "--out", "b"], "say where to write by one of --root and --out"),
        (["--root", ""], "root must be a folder, got ''"),
        (["--root", __file__], f"root must be a folder, got {__file__!r}"),
    ],
)
def test_roots_that_are_not_folders(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fewbit([*RELU, *words]) == 2
    assert capsys.readouterr().err == f"fewbit: {said}\n"


def test_check_takes_files_or_a_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["check", "a.json", "--root", str(tmp_path)], "say what to check by FILE or by --root, got both"),
        (["list", "--root", str(tmp_path)], f"no coefficient files in {tmp_path}"),
        (["check", "--root", "nowhere"], "root must be a folder of coefficient files, got 'nowhere'"),
    ):
        assert run_coefficients(words) == 2
        assert capsys.readouterr().err == f"coefficients: {said}\n"
