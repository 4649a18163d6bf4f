"""The examples run as a reader runs them, and say what they promise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def said_by(name: str, folder: Path) -> str:
    """What an example prints; it runs in an empty folder, which stays empty."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    words = [sys.executable, str(ROOT / "examples" / name)]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert not list(folder.iterdir())
    return done.stdout


def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    said = said_by("train_loop.py", tmp_path)
    stock, coded = map(float, re.findall(r"^bits=\w+: ([\d.]+) MiB", said, re.MULTILINE))
    assert coded < stock / 4
    pairs = re.findall(r"^loss ([\d.]+) as it is, ([\d.]+) with 8 bits$", said, re.MULTILINE)
    losses = [tuple(map(float, pair)) for pair in pairs]
    assert losses[0][0] == losses[0][1]
    assert losses[-1][0] < losses[0][0] / 2
    assert losses[-1][1] < losses[0][1] / 2


def test_the_trainer(tmp_path: Path) -> None:
    for library in ("accelerate", "transformers"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    said = said_by("train_with_trainer.py", tmp_path)
    assert len(re.findall(r"^actfit: saved for backward [\d.]+ MiB, [\d.]+ MiB before;", said, re.MULTILINE)) == 1
    losses = [float(loss) for loss in re.findall(r"'loss': '?([\d.]+)", said)]
    assert losses[-1] < losses[0]


def test_every_example_is_run() -> None:
    names = {path.name for path in (ROOT / "examples").glob("*.py")}
    run = set(re.findall(r'said_by\("(\w+\.py)"', Path(__file__).read_text("utf-8")))
    assert names - run == {"text.py", "torchtitan_8bits.py"}  # both read from the first; test_torchtitan has the other
