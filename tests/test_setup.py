"""`make` without a network: one line, a status, and a set-up that is resumed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="needs make")


def set_up(folder: Path, environment: str) -> None:
    """The files that make reads, and a stand-in for Python whose pip fails until there is a file `online`."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    python = folder / environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '*"pip --version"*) exit 0;;\n'
        '*"pip install"*) echo "WARNING: Retrying"; echo "ERROR: No matching distribution" >&2; test -e online;;\n'
        '*) echo "ran $*";;\n'
        "esac\n"
    )
    python.chmod(0o755)


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MAKEFLAGS": ""}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_set_up_that_failed_says_so_and_is_taken_up_again(tmp_path: Path) -> None:
    """A stand-in for pip fails as if no index answered; then it works."""
    set_up(tmp_path, ".venv")
    done = make(tmp_path, "demo")
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == ("could not install; is there network? (what pip says: .venv/install.log)")
    assert "No matching distribution" not in done.stderr + done.stdout
    assert "No matching distribution" in (tmp_path / ".venv" / "install.log").read_text()
    assert not [*tmp_path.glob(".venv/ready-*")]
    assert not [*tmp_path.glob("*.png")]
    (tmp_path / "online").touch()
    done = make(tmp_path, "demo")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".venv" / "ready-demo").is_file()
    assert "ran -m fitting.fewbit --fn gelu --bits 3" in done.stdout
