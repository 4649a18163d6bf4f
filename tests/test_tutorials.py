"""Each tutorial runs from top to bottom, as a reader follows it, and prints what its page shows."""

import os
import re
import shlex
from pathlib import Path

import pytest

from tests.forks import Forks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "-- next block --"
COMMAND = """
import subprocess, sys
for words in {commands!r}:
    subprocess.run([sys.executable, "-m", *words], check=True)
"""


def program(page: Path) -> tuple[str, list[str]]:
    """The blocks of a page as one program that prints a mark after each, and the output that the page shows of each."""
    parts, shown = [], []
    for language, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "text":
            shown[-1] += body
            continue
        if language == "console":
            lines = body.splitlines(keepends=True)
            commands = [shlex.split(line.removeprefix("$ ")) for line in lines if line.startswith("$ ")]
            assert commands
            assert all(words[0] == "actfit" for words in commands)
            shown.append("".join(line for line in lines if not line.startswith("$ ")))
            body = COMMAND.format(commands=commands)
        else:
            assert language == "python"
            shown.append("")
        parts.append(f"{body}\nprint({MARK!r}, flush=True)\n")
    return "".join(parts), shown


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_reader_sees_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    code, shown = program(page)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "PYTHONIOENCODING": "utf-8"}
    (tmp_path / "tutorial.py").write_text(code, encoding="utf-8")  # PyTorch's capture reads globals of a module
    with Forks("-W", "error", environment=environment) as forks:
        status, out, err = forks.module("tutorial", [], tmp_path)
    assert status == 0, err
    printed = out.split(f"{MARK}\n")
    assert printed.pop() == ""
    assert printed == shown
    assert any(shown)
