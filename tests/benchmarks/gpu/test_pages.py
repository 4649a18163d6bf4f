"""Pages made of rows of a GPU, and a dry run of all parts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import pages, report, rows
from benchmarks.gpu import issue_slots, notes, progress, slots, steps
from benchmarks.gpu.remarks import only_a_device_shows
from benchmarks.gpu.steps import GROUPS, STEPS, parts
from benchmarks.rows import Row, summary
from coefficients import command
from kernels.validate import kernel_for
from tests.benchmarks.gpu.machine import ROOT, WITHOUT, environment


def as_of_a_gpu(text: str) -> str:
    """Rows as a GPU would have them."""
    changed = []
    for line in text.splitlines():
        row = json.loads(line)
        row["device"] = "nvidia-h200"
        row["versions"] = {**row["versions"], "cuda": "13.0", "triton": "3.6.0"}
        changed.append(json.dumps(row) + "\n")
    return "".join(changed)


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    """The committed rows but for those of GPUs, and room for others."""
    folder = tmp_path / "results"
    for path in (ROOT / "benchmarks" / "results").glob("*/*.jsonl"):
        if '"cuda": ' in path.read_text():
            continue
        copied = folder / path.parent.name / path.name
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_text(path.read_text())
    monkeypatch.setattr(rows, "RESULTS", folder)
    monkeypatch.setattr(pages, "RESULTS", folder)
    return folder


SENTENCES = {
    "README.md": "No GPU has timed the kernels yet",
    "docs/performance.md": "No GPU timings",
    "docs/accuracy.md": "On a GPU: nothing",
    "docs/approx_backprop.md": "have not been timed",
    "docs/trainers.md": "[some steps](performance.md#",
    "docs/compression.md": "No GPU has timed coded partitions",
}


def check_pages_of_a_gpu() -> None:
    for name in (*SENTENCES, "docs/memory.md", "docs/kernels.md", "docs/compress.md"):
        text = report.rendered(name)
        assert SENTENCES.get(name, "No rows of a GPU") not in text
        assert "No rows of" not in text
        assert "nvidia-h200" in text


def test_without_rows_of_a_gpu_the_pages_say_so(results):
    for name, sentence in SENTENCES.items():
        assert sentence in report.rendered(name)
    assert "No rows of a GPU yet." in report.rendered("docs/memory.md")
    assert "No rows of a GPU yet." in report.rendered("docs/compress.md")
    assert "No GPU has timed whole models yet" in report.rendered("README.md")
    assert "Steps of an MLP and of a Llama-like model on an H200" in report.rendered("docs/trainers.md")


GPU = {"device": "nvidia-h200", "versions": {"torch": "2", "cuda": "13"}, "revision": "r"}


def group(name: str, failures: int) -> Row:
    """How a group of tests ended on a GPU."""
    return Row("tests", name, "failed", {}, "", "tests", **summary([float(failures)]), **GPU)


def test_what_is_said_of_outputs_comes_from_the_groups_of_tests(results):
    timed = Row("gelu", "invact", "both", {"n": 8}, "bfloat16", "s", **summary([1.0]), **GPU)
    rows.save([timed], "kernels-time")  # as STEPS=speed leaves it
    compared = "before a time was taken, each kernel was compared with its reference.\n- On other GPUs: nothing.\n"
    assert notes.accuracy() == f"- On nvidia-h200: the kernels' tests were not run; {compared}"
    rows.save([group(name, 0) for name in GROUPS], steps.TESTS)
    passed = "all tests of the kernels passed at r, at all 16-bit inputs among them"
    assert notes.accuracy() == f"- On nvidia-h200: {passed}; {compared}"
    rows.save([group("exhaustive", 0), group("kernels", 2)], steps.TESTS)
    assert (
        "by group at r: exhaustive all pass, standalone not run, kernels 2 fail, elementwise not run"
        in notes.accuracy()
    )


def slot(function: str, share: float, ratio: float, mode: str = "forward") -> list[Row]:
    base = {"what": function, "mode": mode, "size": {"n": 8, "bits": 0}, "dtype": "bfloat16", **GPU}
    return [
        Row(implementation="invact", unit="predicted share", **base, **summary([share])),
        Row(implementation="invact / copy", unit="ratio of times", **base, **summary([ratio])),
    ]


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.02, 1.05, 1.5, 2.1), "The model holds: 4 of 4 kernels are within 15 %"),
        ((1.02, 1.6, 1.1, 2.1), "The model does not hold: 2 of 4 kernels are within 15 %"),
    ],
)
def test_the_model_of_issue_slots_is_judged(ratios, verdict, results):
    shares = (0.2, 0.6, 1.5, 2.0)
    measured = [row for at, pair in enumerate(zip(shares, ratios, strict=True)) for row in slot(f"f{at}", *pair)]
    rows.save(measured, "issue-slots")
    text = "\n".join(slots.slots_lines())
    assert verdict in text
    assert "It says of 2 that arithmetic takes the time" in text
    assert "as an H200:" in text
    # The worst comes first: 60 % more than its bytes take.
    worst = next(line for line in text.splitlines() if line.startswith("| f"))
    assert worst.startswith("| f1," if ratios[1] > 1.5 else "| f0,") or ratios[1] < 1.5


def test_ranks_that_are_alike_and_ranks_that_are_not() -> None:
    assert slots._correlation([slots._rank([1.0, 2.0, 3.0]), slots._rank([10.0, 20.0, 90.0])]) == pytest.approx(1)
    assert slots._correlation([slots._rank([1.0, 2.0, 3.0]), slots._rank([9.0, 2.0, 1.0])]) == pytest.approx(-1)
    assert slots._correlation([slots._rank([1.0, 1.0]), slots._rank([1.0, 2.0])]) == 0


def test_predicted_shares_are_those_of_the_page() -> None:
    """docs/performance.md's table of GELU by invact, forward."""
    kernel, _ = kernel_for("gelu", {}, "invact")
    assert issue_slots.model(torch.device("cpu")).name == "H200"
    share = issue_slots.predicted(kernel, "bfloat16", "forward", issue_slots.model(torch.device("cpu")))
    [row] = [line for line in report.kernels_section().splitlines() if line.startswith("| GELU, invact |")]
    assert row.split(" | ")[3] == f"{100 * share:.0f} %"


@pytest.mark.slow
def test_a_dry_run_does_every_step_without_the_packages_that_may_be_missing(results, tmp_path):
    """And its rows make the pages."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in (*progress.SOURCES, "pyproject.toml", "Makefile"):
        (tree / name).symlink_to(ROOT / name)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).with_name("forked.py")}" "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["make", "gpu", "DRY=1", f"PYTHON={python}"],
        cwd=tree, env={**environment(), "PYTHONPATH": f"{WITHOUT}{os.pathsep}{tree}"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == command.GOOD, done.stderr
    assert [line.removeprefix("  - ") for line in done.stdout.splitlines()[-len(only_a_device_shows()) :]] == (
        only_a_device_shows()
    )
    for step in STEPS:
        assert f"{step}/" in done.stdout.splitlines()[0]
    made = tree / "build" / "gpu" / "dry" / "results"
    names = {steps.TESTS, *(part.rows for part in parts(STEPS, True) if part.rows)}
    assert {path.stem for path in made.glob("*.jsonl")} == names
    folder = results / "nvidia-h200"
    folder.mkdir()
    for path in made.glob("*.jsonl"):
        (folder / path.name).write_text(as_of_a_gpu(path.read_text()))
    check_pages_of_a_gpu()
