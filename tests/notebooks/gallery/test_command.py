"""The command: the same bytes each time, a whole file or none, one line for an error."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from actfit.coefficients import command
from actfit.coefficients.command import Misuse
from actfit.coefficients.schema import CoefficientError
from actfit.coefficients.store import DATA
from notebooks.gallery.__main__ import main

ROOT = Path(__file__).parents[3]


def run(*words: str, seed: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    words = (sys.executable, "-m", "notebooks.gallery", *words)
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def small(tmp_path) -> Path:
    """A folder of some files."""
    root = tmp_path / "data"
    shutil.copytree(DATA / "hardswish", root / "hardswish")
    (root / "gelu").mkdir()
    for name in ("fewbit-3bit", "invact-bfloat16", "invact-bfloat16-published"):
        shutil.copy(DATA / "gelu" / f"{name}.v1.json", root / "gelu")
    return root


@pytest.mark.slow
def test_same_files_same_bytes(tmp_path, small):
    for seed in ("1", "2"):
        done = run("--root", str(small), "--out", str(tmp_path / "out" / seed), seed=seed)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"{tmp_path / 'out' / seed / 'index.html'}\n"
    pages = [(tmp_path / "out" / seed / "index.html").read_bytes() for seed in ("1", "2")]
    assert pages[0] == pages[1]
    assert os.listdir(tmp_path / "out" / "1") == ["index.html"]


def said(capsys, *words: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of the command, in this process."""
    return (command.run("gallery", lambda: main([*words]), (CoefficientError,)), *capsys.readouterr())


def test_a_changed_file_leaves_the_page_as_it_was(tmp_path, small, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "index.html").write_text("old")
    path = small / "gelu" / "fewbit-3bit.v1.json"
    path.write_text(path.read_text().replace("0.187320438", "0.187320439"))
    status, _, err = said(capsys, "--root", str(small), "--out", str(out))
    assert (status, err.count("\n")) == (2, 1)
    assert "sha256 must be the hash of the rest" in err
    assert (out / "index.html").read_text() == "old"
    assert os.listdir(out) == ["index.html"]


def test_folders_that_are_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page").touch()
    for option, given, line in (
        ("--out", "", "--out must be a folder, got ''; try --out ."),
        ("--root", "", "--root must be a folder of coefficient files, got ''"),
        ("--out", "page", "--out must be a folder, got 'page', where a file is in the way"),
        ("--out", "page/deeper", "--out must be a folder, got 'page/deeper', where a file is in the way"),
    ):
        assert said(capsys, option, given) == (2, "", f"gallery: {line}\n")
    assert os.listdir(tmp_path) == ["page"]


def test_no_files(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(Misuse, match=r"no coefficient files in .*empty"):
        main(["--root", str(tmp_path / "empty"), "--out", str(tmp_path / "out")])
    with pytest.raises(Misuse, match="--root must be a folder of coefficient files, got"):
        main(["--root", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out" / "index.html").exists()
