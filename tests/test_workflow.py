"""The workflow runs .ci/run and targets of the Makefile, and no commands of its own."""

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
PLAIN = {"if", "grep", "tee", "exit", "fi"}  # of the shell, which may stand between


@pytest.fixture(scope="module")
def workflow() -> dict:
    return yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))


def scripts(job: dict) -> list[str]:
    """The scripts of a job's steps."""
    return [step["run"].strip() for step in job["steps"] if "run" in step]


def commands(script: str) -> list[list[str]]:
    """The commands of a script, each as a list of words."""
    words = list(shlex.shlex(script.replace("\n", " ; "), posix=True, punctuation_chars="|;"))
    split_commands: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set("|;"):
            split_commands.append([])
        elif split_commands[-1] or word != "then":
            split_commands[-1].append(word)
    return [command for command in split_commands if command]


def unknown(script: str) -> list[str]:
    """Commands that are neither targets of the Makefile, nor files of ours, nor the shell's own."""
    return [
        " ".join(words)
        for words in commands(script)
        if not (words[0] == "make" and len(words) > 1 and words[1] in TARGETS)
        and words[0] not in PLAIN
        and not os.access(ROOT / words[0], os.X_OK)
    ]


def test_every_command_is_there(workflow):
    all_scripts = [script for job in workflow["jobs"].values() for script in scripts(job)]
    assert len(all_scripts) >= len(workflow["jobs"])
    assert [command for script in all_scripts for command in unknown(script)] == []


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
