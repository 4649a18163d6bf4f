"""A dry run of all parts, whose rows make pages; whole models."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from actfit.coefficients import command
from benchmarks import pages, report, rows
from benchmarks.gpu import progress
from benchmarks.gpu.steps import STEPS, parts
from tests.benchmarks.gpu.machine import ROOT, WITHOUT, environment

pytestmark = pytest.mark.slow


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
    for step in STEPS:
        assert f"{step}/" in done.stdout.splitlines()[0]
    made = tree / "build" / "gpu" / "dry" / "results"
    assert {path.stem for path in made.glob("*.jsonl")} == {part.rows for part in parts(STEPS, True) if part.rows}
    folder = results / "nvidia-h200"
    folder.mkdir()
    for path in made.glob("*.jsonl"):
        (folder / path.name).write_text(as_of_a_gpu(path.read_text()))
    for name in ("compression", "gpu-models", "kernel-times", "rivals"):
        assert "nvidia-h200" in report.SECTIONS[name](), name
