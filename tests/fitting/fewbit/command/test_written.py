"""Where actfit fewbit writes, and that its files are valid."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actfit.coefficients.__main__ import run as run_coefficients
from tests.fitting.commands import Command, environment, files, posix, stored


@posix
def test_out_through_a_link_and_into_a_pipe(fewbit: Command) -> None:
    words = ("--fn", "relu", "--bits", "1", "--quiet", "--out")
    Path("real.json").touch()
    Path("link.json").symlink_to("real.json")
    assert fewbit(*words, "link.json") == (0, "", "")
    assert Path("link.json").is_symlink()
    text = fewbit("--fn", "relu", "--bits", "1", "--out", "-")[1]
    assert Path("real.json").read_text() == text
    reading, writing = os.pipe()
    # By a link made here, so that the machine's own devices are safe if it is replaced.
    Path("pipe").symlink_to(f"/dev/fd/{writing}")
    assert fewbit(*words, "pipe") == (0, "", "")
    os.close(writing)
    with open(reading, encoding="ascii") as pipe:
        assert pipe.read() == text


@posix
def test_folders_that_one_may_not_write_to(fewbit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # for root, too
    for option in ("--out=x.json", "--plot=x.png"):
        status, out, err = fewbit("--fn", "relu", "--bits", "1", option)
        assert (status, out) == (2, "")
        name, path = option[2:].split("=")
        assert err == f"fewbit: {name} must be where you may write, got '{path}'\n"
    assert files() == []


def test_a_plot_that_fails_leaves_no_table(fewbit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    def full(self: Figure, path: Path, **_: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    status, out, err = fewbit("--fn", "relu", "--bits", "1", "--plot", "x.png")
    assert (status, out, err) == (2, "", "fewbit: cannot write x.png: No space left on device\n")
    assert files() == []


def test_a_full_disk_leaves_no_half_file(fewbit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    published = Path("actfit/coefficients/relu/fewbit-1bit.v1.json").resolve()
    for words, path in (((), published), (("--out", "x.json"), Path("x.json").resolve())):
        status, out, err = fewbit("--fn", "relu", "--bits", "1", *words)
        assert (status, out, err) == (2, "", f"fewbit: cannot write {path}: No space left on device\n")
        assert files() == []


AGAIN = [
    ["--fn", "softplus", "--param", "beta=1.2345678901234567", "--max-error", "0.1"],
    ["--fn", "hardtanh", "--param", "min_val=-1e-7", "--bits", "1", "--domain", "-1e3", "0.1"],
    ["--fn", "gelu", "--bits", "1", "--weight", " norm( 0.1, scale=2 )", "--domain", "-3", "1e-3"],
    ["--fn", "tanh", "--bits", "2", "--levels", "even", "--weight", "my samples.npy"],
    ["--expr", "-x * where(x > 0, b, 2)", "--param", "b=-1e-7", "--bits", "1"],
    ["--expr=--x**2", "--name", "double_minus", "--bits", "1"],
]


@pytest.mark.slow
@posix
@pytest.mark.parametrize("words", AGAIN, ids=" ".join)
def test_the_stored_command_makes_the_file_again(
    words: list[str], fewbit: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save("my samples.npy", np.random.default_rng(0).normal(size=50))
    assert fewbit(*words, "--out", "first.json")[0] == 0
    spelled = stored("first.json")["provenance"]["command"]
    again = folder / "again"
    again.mkdir()
    np.save(again / "my samples.npy", np.random.default_rng(0).normal(size=50))
    if words == AGAIN[4]:  # what is hardest to quote goes through a real shell
        line = spelled.replace("python", shlex.quote(sys.executable), 1)
        elsewhere = environment(XDG_DATA_HOME=str(again))
        subprocess.run(line, shell=True, cwd=again, env=elsewhere, check=True, stdout=subprocess.DEVNULL)
    else:
        monkeypatch.chdir(again)
        monkeypatch.setenv("XDG_DATA_HOME", str(again))
        assert shlex.split(spelled)[:3] == ["python", "-m", "fitting.fewbit"]
        assert fewbit(*shlex.split(spelled)[3:])[0] == 0
    (made,) = again.rglob("*.json")
    assert made.read_bytes() == (folder / "first.json").read_bytes()


@pytest.mark.slow
def test_freshly_made_files_are_good(
    fewbit: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fewbit("--fn", "relu", "--bits", "1")
    fewbit("--fn", "silu", "--bits", "2", "--domain", "-3", "4.5")
    fewbit("--fn", "tanh", "--bits", "2", "--levels", "even")
    fewbit("--fn", "gelu", "--bits", "2", "--weight", "norm(0,2)")
    fewbit("--expr", "x**3/a", "--param", "a=0.3", "--name", "cube", "--bits", "1")
    monkeypatch.setattr("actfit.coefficients.store.DATA", Path("actfit/coefficients").resolve())
    assert run_coefficients(["check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "5 files, 0 bad"
    assert all(line.endswith(": ok") for line in lines[:-1])
