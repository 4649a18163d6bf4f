"""The workflow runs .ci/run on each Python, and that runs the linters and each test once."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def workflow() -> dict:
    return yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))


def scripts(job: dict) -> list[str]:
    """The scripts of a job's steps."""
    return [step["run"].strip() for step in job["steps"] if "run" in step]


def test_every_python_that_we_promise_runs_what_ci_runs(workflow):
    check = workflow["jobs"]["check"]
    assert scripts(check) == [".ci/run"]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["classifiers"]
    promised = [classifier.rpartition(" ")[2] for classifier in classifiers if re.search(r":: 3\.\d+$", classifier)]
    assert check["strategy"]["matrix"]["python"] == promised


def test_ci_runs_the_linters_and_each_test_once():
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    targets = [line.split()[1] for line in lines if line.startswith("make ")]
    assert targets == ["lint", "test", "test-rest"]
    recipes = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"pytest .*--tier (\w+)", recipes) == ["quick", "rest"]
