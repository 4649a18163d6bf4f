"""The row format of all benchmarks, their shared options, and `benchmarks.run`."""

import json
import math
import subprocess
from dataclasses import asdict, fields

import pytest
import torch

from actfit.coefficients import command
from benchmarks import options, rows, run
from benchmarks.rows import RESULTS, Row

FILES = sorted(RESULTS.glob("*/*.jsonl"))
TYPES = {
    **dict.fromkeys(("what", "implementation", "mode", "dtype", "unit", "device", "revision", "coefficients"), str),
    **{"size": dict, "versions": dict, "quantiles": list, "runs": int},
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_all_rows_have_the_one_format(path):
    for row in rows.read_lines(path):
        assert [column.name for column in fields(Row)] == list(row)[: len(fields(Row))], row
        for name, kind in TYPES.items():
            assert isinstance(row[name], kind), (name, row)
        low, high = row["quantiles"]
        if row["median"] is None:  # a training that diverged
            assert row["what"].startswith("training"), row
            assert low is None, row
        else:
            # A ratio of medians need not lie between the quantiles of ratios.
            assert math.isfinite(row["median"]), row
            assert low <= high, row
            assert low <= row["median"] <= high or row["unit"] == "ratio of medians", row
        assert row["runs"] >= 1, row
        assert row["device"] == path.parent.name
        assert len(row["coefficients"]) == 12, row
        assert set(row["coefficients"]) <= set("0123456789abcdef"), row


def test_a_tree_that_differs_is_told_unless_by_results(tmp_path, monkeypatch):
    def git(*words):
        who = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    monkeypatch.setattr(rows, "RESULTS", results)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert rows.revision() == "unknown"
    code, row = tmp_path / "code.py", results / "rows.jsonl"
    code.write_text("1")
    row.write_text("1")
    git("init")
    git("add", "-A")
    git("commit", "-m", "one")
    clean = rows.revision()
    assert len(clean) >= 7
    assert not clean.endswith("+")
    row.write_text("2")
    assert rows.revision() == clean
    code.write_text("2")
    assert rows.revision() == f"{clean}+"
    monkeypatch.setenv("ACTFIT_REVISION", "stated")
    assert rows.revision() == "stated"


def test_rows_are_recorded_by_device_or_in_one_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    first, second = (
        Row("w", name, "m", {}, "float32", "s", **rows.summary([1.0]), device="d") for name in ("one", "other")
    )
    files = [("first", [first]), ("second", [second, first])]
    rows.record(files, None, quick=True)
    assert not list(tmp_path.iterdir())
    rows.record(files, None, quick=False)
    assert [len(path.read_text().splitlines()) for path in sorted(tmp_path.glob("d/*.jsonl"))] == [1, 2]
    rows.record(files, tmp_path / "all", quick=True)
    lines = (tmp_path / "all").read_text().splitlines()
    assert lines == [json.dumps(asdict(row)) for row in (first, second, first)]
    assert "3 rows" in capsys.readouterr().out


def test_what_was_measured_before_an_end_is_left(tmp_path, capsys):
    """With a file for it: each group of rows is there when the next is measured."""
    file, seen = tmp_path / "rows.jsonl", []
    made = [Row("gelu", way, "a mode", {}, "float32", "s", **rows.summary([1.0])) for way in ("one", "two", "three")]

    def groups():
        for group in (made[:1], [], made[1:]):
            yield group
            seen.append(rows.read(file))

    assert rows.described_rows(groups(), lambda group: group[0].implementation, file) == made
    assert seen == [made[:1], made[:1], made]
    assert capsys.readouterr().out == "one\ntwo\n"


@pytest.mark.parametrize("word", ["0", "-1", "1.5", "1e3", "4097", "2^13", "2^", "²", "", " 1", "nan"])
def test_what_is_no_whole_number(word):
    with pytest.raises(command.Misuse, match="n must be a whole number from 1 to 4096"):
        options.whole("n", word, 4096)


def test_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert options.device(None).type == "cpu"
    with pytest.raises(command.Misuse, match="torch sees no GPU; use --device cpu"):
        options.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert options.device(None).type == "cuda"
    with pytest.raises(command.Misuse, match="device must be cuda or cpu, got 'tpu'"):
        options.device("tpu")


class Commands:
    """A stand-in for subprocess.run: commands with one of the words `failing` fail."""

    def __init__(self, failing):
        self.failing, self.words = failing, []

    def __call__(self, words, **_):
        self.words.append(words[1:])
        failed = any(word in words for word in self.failing)
        return subprocess.CompletedProcess(words, int(failed))


@pytest.fixture
def commands(monkeypatch):
    def make(*failing):
        stand_in = Commands(failing)
        monkeypatch.setattr(run.subprocess, "run", stand_in)
        return stand_in

    return make


def _modules(stand_in):
    return [words[1] for words in stand_in.words]


@pytest.mark.parametrize("suite", run.SUITES)
def test_a_suite_runs_its_tests_and_then_its_steps(suite, commands):
    stand_in = commands()
    assert run.main([suite, "--device", "cpu"]) == command.GOOD
    steps = [f"benchmarks.{step.module}" for step in run.SUITES[suite]]
    assert _modules(stand_in) == ["pytest"] * (suite in run.TESTS) + steps
    for words, step in zip(stand_in.words[-len(steps) :], run.SUITES[suite], strict=True):
        assert ("--device" in words) == step.placed
        assert "--quick" not in words


@pytest.mark.parametrize("suite", run.TESTS)
def test_nothing_is_measured_while_its_tests_fail(suite, commands, capsys):
    stand_in = commands("pytest")
    assert run.main([suite, "accuracy", "--device", "cpu"]) == command.BAD
    others = [f"benchmarks.{step.module}" for step in run.SUITES["accuracy"]]
    assert _modules(stand_in) == ["pytest", *others]
    assert f"{suite}: not measured, its tests fail" in capsys.readouterr().err


def test_a_step_that_fails_does_not_keep_the_others(commands, capsys):
    first, *_ = run.SUITES["accuracy"]
    stand_in = commands(f"benchmarks.{first.module}")
    assert run.main(["accuracy", "--device", "cpu"]) == command.BAD
    assert len(stand_in.words) == len(run.SUITES["accuracy"])
    assert f"benchmarks.{first.module} failed with status 1" in capsys.readouterr().err


def test_steps_and_tests_are_there():
    for suite in run.SUITES.values():
        for step in suite:
            path = run.ROOT / "benchmarks" / step.module
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
    for names in run.TESTS.values():
        assert all((run.ROOT / "tests" / name).is_file() for name in names)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["everything"], "suite must be of accuracy, memory, speed, training"), (["speed", "--device", "x"], "device")],
)
def test_wrong_options(words, said):
    with pytest.raises(command.Misuse, match=said):
        run.main(words)
