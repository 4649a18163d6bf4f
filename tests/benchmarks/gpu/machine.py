"""A machine with a GPU that lacks some packages, for tests of `benchmarks.gpu`."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[3]
WITHOUT = ROOT / "tests" / "without"


def environment() -> dict[str, str]:
    """Without the packages that a machine with a GPU may lack, nor what a make around the tests hands on."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return {**outside, "PYTHONPATH": f"{WITHOUT}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
