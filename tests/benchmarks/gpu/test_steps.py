"""What `benchmarks.gpu` is to run: parts, the tests that they rest on, what a machine with a GPU may lack."""

import subprocess
import sys

import pytest

from benchmarks.gpu import models, running
from benchmarks.gpu.steps import GROUPS, STEPS, parts
from tests.benchmarks.gpu.machine import ROOT, environment

WITH_NUMBA = ("neighbours", "loops")  # of kernels.engine: `host.loops` imports them where Numba is


@pytest.mark.slow
def test_what_a_gpu_needs_imports_without_the_packages_that_may_be_missing() -> None:
    folders = [*(f"benchmarks/{part}" for part in ("gpu", "compression", "kernels", "rivals")), "kernels", "codegen"]
    modules = sorted(
        "actfit." * (folder in ("kernels", "codegen"))
        + ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "generated" not in path.parts and path.stem not in WITH_NUMBA
    )
    code = f"""
import importlib
from importlib.util import find_spec
for name in ("numba", "flint", "joblib", "matplotlib", "threadpoolctl", "sklearn", "pyoperon", "jsonschema", "onnx"):
    assert find_spec(name) is None, name
for name in {[*modules, "benchmarks.report", "benchmarks.slack", "benchmarks.accuracy.__main__"]!r}:
    importlib.import_module(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_names_of_parts_are_one_each_and_rest_on_groups_that_run_before() -> None:
    for dry in (False, True):
        every = parts(STEPS, dry)
        assert len({(part.step, part.name) for part in every}) == len(every)
        assert all(group in GROUPS for part in every for group in part.rests_on)


def test_the_groups_files_are_there() -> None:
    for group in GROUPS.values():
        assert all((ROOT / "tests" / name).is_file() for name in group.files)


SOME = "FAILED tests/a.py::test_it - assert 0\n"


@pytest.mark.parametrize(
    ("status", "said", "failed"),
    [
        (0, "2 passed in 1s", []),
        (0, "2 skipped in 1s", ["pytest ended with 0, 2 skipped in 1s"]),
        (1, f"{SOME}1 failed, 1 passed in 1s", ["tests/a.py::test_it"]),
        (2, f"{SOME}broken off", ["tests/a.py::test_it", "pytest ended with 2, broken off"]),
        (124, "..", ["pytest ended with 124, .."]),
    ],
)
def test_what_a_group_says_of_its_tests(status, said, failed, tmp_path):
    log = tmp_path / "log"
    log.write_text(said)
    assert running.failed_tests(status, log, dry=False) == tuple(failed)


def test_a_misspelt_way_does_not_run_as_eager() -> None:
    with pytest.raises(ValueError, match=r"way must be one of eager, .*, got 'compres exact'"):
        models.prepare(None, "compres exact")
