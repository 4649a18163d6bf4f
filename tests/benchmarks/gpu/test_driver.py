"""`python -m benchmarks.gpu`: parts that fail, are blocked, broken off or put off, and run again."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from actfit.coefficients import command
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import progress
from benchmarks.gpu.steps import Part

Run = Callable[..., int]


SCRIPT = """
import json, pathlib, sys, time
kind, out = sys.argv[1], pathlib.Path(sys.argv[-1])
with open({log!r}, "a") as log: log.write(kind + chr(10))
if kind == "slow, but begun": out.write_text(json.dumps({{"of": "begun"}}) + chr(10))
if kind.startswith("slow"): time.sleep(60)
if kind.startswith("test"):
    failed = pathlib.Path({tests!r}).read_text()
    print("FAILED " + failed if failed else "1 passed")
    sys.exit(bool(failed))
if kind.startswith("bad"): print("what went wrong"); sys.exit(1)
out.write_text(json.dumps({{"of": kind}}) + chr(10))
"""


class Driven:
    """The command over made-up parts; `ran` has what they were called with."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.log, self.tests = folder, folder / "ran", folder / "failing"
        self.tests.write_text("")
        self.script = folder / "part.py"
        self.script.write_text(SCRIPT.format(log=str(self.log), tests=str(self.tests)))
        monkeypatch.setattr(gpu, "root", lambda: folder)
        monkeypatch.setattr(gpu, "parts", lambda asked, _: [part for part in self.parts if part.step in asked])
        monkeypatch.setattr(progress, "sources", lambda: self.sources)
        monkeypatch.setattr(Part, "command", property(lambda part: [sys.executable, str(self.script), *part.words]))
        self.sources = "one"
        self.parts: list[Part] = []

    def __call__(self, *options: str) -> int:
        return command.run("gpu", lambda: gpu.main(["--dry", *options]))

    @property
    def ran(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    @property
    def results(self) -> Path:
        return self.folder / "build" / "gpu" / "dry" / "results"


def part(step: str, name: str, *rests: str, seconds: int = 1, of: str = "") -> Part:
    return Part(step, name, (name,), seconds, of if step != "tests" else "", rests)


@pytest.fixture
def driven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driven:
    return Driven(tmp_path, monkeypatch)


def test_a_part_that_fails_keeps_no_other_and_is_what_the_next_call_runs(driven, capfd):
    driven.parts = [
        part("speed", "one", of="times"),
        part("speed", "bad", of="times"),
        part("speed", "two", of="times"),
    ]
    assert driven() == command.BAD
    out, err = capfd.readouterr()
    assert driven.ran == ["one", "bad", "two"]
    assert "what went wrong" in err
    assert "failed: speed/bad" in out
    # The rows of all parts of a kind, in their order.
    assert (driven.results / "times.jsonl").read_text() == '{"of": "one"}\n{"of": "two"}\n'
    driven.script.write_text(driven.script.read_text().replace('"bad"', '"no"'))
    assert driven() == command.GOOD
    assert driven.ran == ["one", "bad", "two", "bad"]
    assert (driven.results / "times.jsonl").read_text() == '{"of": "one"}\n{"of": "bad"}\n{"of": "two"}\n'


def test_a_test_that_fails_blocks_what_rests_on_it_and_nothing_else(driven, capfd):
    driven.parts = [part("tests", "test-a"), part("speed", "gelu", "test-a"), part("memory", "free")]
    driven.tests.write_text("tests/x.py::test[gelu]\n")
    assert driven() == command.BAD
    assert driven.ran == ["test-a", "free"]
    out, err = capfd.readouterr()
    assert "blocked: speed/gelu" in out
    assert "speed/gelu: blocked, 0 s; it rests on tests/x.py::test[gelu]" in err
    # Mended, the tests run again, and then what was blocked.
    driven.tests.write_text("")
    assert driven() == command.GOOD
    assert driven.ran[2:] == ["test-a", "gelu"]


def test_other_sources_and_a_damaged_file_begin_anew(driven, capfd):
    driven.parts = [part("speed", "one")]
    assert [driven(), driven()] == [command.GOOD] * 2
    assert driven.ran == ["one"]
    driven.sources = "two"
    assert driven() == command.GOOD
    assert "the sources are not those of the last call" in capfd.readouterr().err
    (driven.folder / "build" / "gpu" / "dry" / "progress.json").write_text('{"sources": ')
    assert driven() == command.GOOD
    assert "is damaged: all begins anew" in capfd.readouterr().err
    assert driven("--again") == command.GOOD
    assert driven.ran == ["one"] * 4


@pytest.mark.parametrize("changed", ["--again", "sources"])
def test_rows_of_other_sources_are_not_published(changed, driven):
    driven.parts = [
        part("tests", "test-a"),
        part("speed", "one", of="times"),
        part("speed", "two", "test-a", of="times"),
    ]
    assert driven() == command.GOOD
    assert (driven.results / "times.jsonl").read_text() == '{"of": "one"}\n{"of": "two"}\n'
    driven.tests.write_text("tests/x.py::test[gelu]\n")
    if changed == "sources":
        driven.sources = "two"
    assert driven(*["--again"] * (changed == "--again")) == command.BAD
    assert (driven.results / "times.jsonl").read_text() == '{"of": "one"}\n'


@pytest.mark.slow
def test_a_part_that_does_not_end_is_ended(driven, monkeypatch, capfd):
    """What it has measured until then counts."""
    monkeypatch.setattr(gpu, "MOST", 2)
    driven.parts = [part("speed", "slow, but begun", of="times"), part("speed", "one", of="times")]
    begun = time.monotonic()
    assert driven() == command.BAD
    assert time.monotonic() - begun < 30
    assert driven.ran == ["slow, but begun", "one"]
    assert (driven.results / "times.jsonl").read_text() == '{"of": "begun"}\n{"of": "one"}\n'
    assert "speed/slow, but begun: failed, 2 s; no end after 2 s" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dry", "--steps", "speed,memory"), "steps must be of tests, speed, memory, models, got 'speed,memory'"),
        (("--dry", "--steps", " "), "steps must be of tests, speed, memory, models, got ' '"),
        (("--dry", "--limit", "soon"), "limit must be a whole number from 1 to 86400, got 'soon'"),
        ((), "device must be there, got 'cuda', and torch sees no GPU"),
    ],
)
def test_wrong_options(options, said, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.run("gpu", lambda: gpu.main(options)) == command.MISUSED
    out, err = capsys.readouterr()
    assert said in err
    assert (out, err.count("\n")) == ("", 1)
