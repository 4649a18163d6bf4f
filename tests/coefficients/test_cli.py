"""python -m coefficients: what it prints, where, and its exit status."""

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actfit import coefficients
from actfit.coefficients import publish, store
from actfit.coefficients.__main__ import run
from actfit.coefficients.document import SEALED, seal
from actfit.coefficients.store import write
from actfit.fitting.activations import get
from actfit.fitting.fewbit.document import to_document
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.weights import parse_weight
from tests.coefficients.documents import bump_fit, relu_fit

ROOT = Path(coefficients.__file__).parents[1]
JUDGE, READER = "actfit.fitting.fewbit.verify", "actfit.fitting.stored"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of two files in place of the packaged ones."""
    publish(bump_fit(), "custom-2bit", tmp_path)
    publish(relu_fit(), "fewbit-1bit", tmp_path)
    monkeypatch.setattr(store, "DATA", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A judge whose findings are this list; those that begin with a question mark are unverified."""
    findings: list[Any] = []
    judge, reader = types.ModuleType(JUDGE), types.ModuleType(READER)
    judge.verify = (
        lambda document, weights: (  # type: ignore[attr-defined]
            [finding for finding in findings if finding[0] != "?"],
            [finding[1:] for finding in findings if finding[0] == "?"],
        )
    )
    reader.read = lambda document: []  # type: ignore[attr-defined]
    for part in ("fitting", "actfit.fitting.fewbit"):
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    monkeypatch.setitem(sys.modules, JUDGE, judge)
    monkeypatch.setitem(sys.modules, READER, reader)
    return findings


def test_check_reports_the_judge(data: Path, judge: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    judge += ["error.linf must be 0.3, got 0.2", "error.gap ..."]
    path = "bump/custom-2bit.v1.json"
    assert run(["check", path]) == 1
    line, count = capsys.readouterr().out.splitlines()
    assert line == f"{path}: error.linf must be 0.3, got 0.2; {path}: error.gap ..."
    assert count == "1 file, 1 bad"
    assert run(["check", path, "--no-recompute"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 file, 0 bad (errors not recomputed)"


def test_check_says_what_it_could_not_verify(data: Path, judge: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    judge += ["?error.rms", "?this and that"]
    assert run(["check"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "bump/custom-2bit.v1.json: ok; not verified: error.rms, this and that",
        "relu/fewbit-1bit.v1.json: ok; not verified: error.rms, this and that",
        "2 files, 0 bad, 2 verified in part",
    ]


def test_the_meaning_is_looked_at_before_the_hash(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Expressions by the grammar too, without recomputing anything."""
    path = data / "bump" / "custom-2bit.v1.json"
    path.write_text(path.read_text().replace('"x*sigmoid(beta*x)"', '"__import__(beta)"'))
    monkeypatch.setitem(sys.modules, JUDGE, None)
    assert run(["check", "--no-recompute", "bump/custom-2bit.v1.json"]) == 1
    line = capsys.readouterr().out.splitlines()[0]
    assert "__import__" in line.partition("; ")[0], line
    assert "; bump/custom-2bit.v1.json: sha256 must be the hash of the rest" in line


def test_check_says_once_that_there_is_no_judge(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, JUDGE, None)
    assert run(["check"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "2 files, 0 bad (errors not recomputed)"
    assert err.startswith("coefficients: errors of fewbit files were not recomputed: ")
    assert err.count("\n") == 1


def test_check_goes_on_after_a_bad_file(data: Path, judge: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "bump" / "custom-2bit.v1.json"
    path.write_text(path.read_text().replace('"bits": 2', '"bits": 9'))
    (data / "stray.json").write_text("{")  # not where files belong, but seen
    assert run(["check"]) == 1
    bump, relu, stray, count = capsys.readouterr().out.splitlines()
    assert bump == "bump/custom-2bit.v1.json: options.bits must be at most 8, got 9"
    assert relu.endswith(": ok")
    assert stray.startswith("stray.json: must be JSON: ")
    assert count == "3 files, 2 bad"


def test_check_goes_on_after_a_missing_file(data: Path, judge: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "none.json", "bump/custom-2bit.v1.json", "bump"]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines() == ["bump/custom-2bit.v1.json: ok", "1 file, 0 bad"]
    assert err.splitlines() == ["coefficients: none.json does not exist", "coefficients: bump is not a file"]


def test_check_of_a_fit_to_samples_with_its_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = {}
    for seed in (1, 2):
        np.save(tmp_path / f"{seed}.npy", np.random.default_rng(seed).normal(size=100))
        weights[seed] = parse_weight(str(tmp_path / f"{seed}.npy"))
    table = fit(get("tanh"), 1, weight=weights[1])
    path, wrong = tmp_path / "tanh.json", tmp_path / "wrong.json"
    made = seal(to_document(table), 1)
    write(made, path)
    error = {**made["error"], "l2_squared": made["error"]["l2_squared"] * 1.01}
    error["gap"] = (error["l2_squared"] - error["lower_bound"]) / error["l2_squared"]
    write(seal({**{key: made[key] for key in made if key not in SEALED}, "error": error}, 1), wrong)
    assert run(["check", str(path)]) == 0
    assert "; not verified: error.l2_squared, error.lower_bound and error.gap, as the" in capsys.readouterr().out
    assert run(["check", str(path), "--weight", str(tmp_path / "1.npy")]) == 0
    assert capsys.readouterr().out == f"{path}: ok\n1 file, 0 bad\n"
    assert run(["check", str(wrong), "--weight", str(tmp_path / "1.npy")]) == 1
    assert "error.l2_squared must be" in capsys.readouterr().out
    assert run(["check", str(path), "--weight", str(tmp_path / "2.npy")]) == 2
    got = f"weight must be that of a file that is checked, got {weights[2].label}, which none has"
    assert capsys.readouterr().err == f"coefficients: {got}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["check", "--weight", "w.npy"],
            "coefficients: weight must be a file of samples that can be read, got 'w.npy'",
        ),
        (["check", "--weight", "w.npy", "--no-recompute"], "coefficients: --weight goes without --no-recompute"),
        (["list", ""], "coefficients: function must be one that"),
        (["list", "relo"], "coefficients: function must be one that"),
        (["check", "--prove", "--no-recompute"], "coefficients: --prove recomputes, and goes without --no-recompute"),
    ],
)
def test_what_is_not_there(arguments: list[str], message: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["chek"], ["check", "--fast"]])
def test_wrong_usage_is_one_line(arguments: list[str], data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(arguments)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("; see --help\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["check", "list"])
def test_no_files_at_all(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "DATA", tmp_path)
    assert run([name]) == 2
    assert capsys.readouterr().err == f"coefficients: no coefficient files in {tmp_path}\n"


def test_list(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "function  name         version  bits  levels  l2_squared  linf     gap",
        "bump      custom-2bit        1     2       3         0.3   0.2  0.6667",
        "relu      fewbit-1bit        1     1       2           0     0       0",
    ]
    assert run(["list", "relu"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_list_passes_over_a_bad_file(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "relu" / "bad.v1.json").write_text("{}")
    assert run(["list"]) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert "bad.v1.json: schema_version is required" in err


def test_a_file_that_cannot_be_read(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("actfit.coefficients.__main__.read_unsealed", refused)
    assert run(["check", "relu/fewbit-1bit.v1.json"]) == 2
    assert capsys.readouterr().err == "coefficients: relu/fewbit-1bit.v1.json: Permission denied\n"


@pytest.mark.skipif(os.name != "posix", reason="POSIX file names")
def test_names_of_files_need_not_be_text(data: Path) -> None:
    strange = os.fsdecode(b"\xff.json")
    Path(strange).write_text("{}")
    words = [sys.executable, "-W", "error", "-m", "coefficients", "check", "--no-recompute", strange]
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout.startswith("\\udcff.json: schema_version is required")
