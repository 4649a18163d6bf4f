"""Two processes that run a test's own file as a script, and what they leave."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]


def of_two(file: str, folder: Path, seconds: float) -> Any:
    """What `python file rank folder`, for ranks 0 and 1 at once, puts into results.pt of the folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", file, str(rank), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=seconds)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    return torch.load(folder / "results.pt")
