"""The command: the same bytes each time, a whole file or none, one line for an error."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coefficients.command import Misuse
from coefficients.store import DATA
from notebooks.gallery.__main__ import main

ROOT = Path(__file__).parents[3]


def run(*words: str, seed: str = "0", cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "notebooks.gallery", *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


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


def test_the_page_goes_to_build_by_default(tmp_path, small, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["--root", str(small)]) == 0
    assert capsys.readouterr().out == f"{Path('build', 'gallery', 'index.html')}\n"
    assert (tmp_path / "build" / "gallery" / "index.html").is_file()


def test_a_changed_file_leaves_the_page_as_it_was(tmp_path, small):
    out = tmp_path / "out"
    out.mkdir()
    (out / "index.html").write_text("old")
    path = small / "gelu" / "fewbit-3bit.v1.json"
    path.write_text(path.read_text().replace("0.187320438", "0.187320439"))
    done = run("--root", str(small), "--out", str(out))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "sha256 must be the hash of the rest" in done.stderr
    assert (out / "index.html").read_text() == "old"
    assert os.listdir(out) == ["index.html"]


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "page").write_text("")
    out = tmp_path / "page"
    done = run("--out", str(out))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gallery: --out must be a folder, got {str(out)!r}, where a file is in the way\n"
    with pytest.raises(Misuse, match="where a file is in the way"):
        main(["--out", str(out / "deeper")])


def test_an_empty_name_is_no_folder(tmp_path):
    for option, line in (
        ("--out", "--out must be a folder, got ''; try --out ."),
        ("--root", "--root must be a folder of coefficient files, got ''"),
    ):
        done = run(option, "", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"gallery: {line}\n")
    assert os.listdir(tmp_path) == []


def test_a_folder_where_the_page_should_be(tmp_path):
    (tmp_path / "index.html").mkdir()
    with pytest.raises(Misuse, match=r"--out must be a folder in which index\.html can be written"):
        main(["--out", str(tmp_path)])


def test_a_folder_that_may_not_be_written(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(Misuse, match=r"--out must be a folder where you may write, got .*: Permission denied"):
        main(["--out", str(tmp_path / "new")])


def test_no_files(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(Misuse, match=r"no coefficient files in .*empty"):
        main(["--root", str(tmp_path / "empty"), "--out", str(tmp_path / "out")])
    with pytest.raises(Misuse, match="--root must be a folder of coefficient files, got"):
        main(["--root", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out" / "index.html").exists()


def test_no_files_that_are_shown(tmp_path):
    (tmp_path / "data" / "gelu").mkdir(parents=True)
    shutil.copy(DATA / "gelu" / "fewbit-7bit.v1.json", tmp_path / "data" / "gelu")
    with pytest.raises(Misuse, match=r"no coefficient files in .*data that the page shows"):
        main(["--root", str(tmp_path / "data"), "--out", str(tmp_path / "out")])


def test_wrong_words(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--nonsense"])
    assert capsys.readouterr().err == "gallery: unrecognized arguments: --nonsense; see --help\n"
