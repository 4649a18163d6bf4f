"""Each statement in docs/reference/support.md names the test that checks it."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "reference" / "support.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w/]*test_\w+)::(test_\w+)`")


def names_of_tests() -> set[tuple[str, str]]:
    """The file and name of each test in this folder and its subfolders, and of those of the callbacks."""
    return {
        (file.relative_to(folder).with_suffix("").as_posix(), node.name)
        for folder, within in ((HERE, HERE), (HERE.parent, HERE.parent / "integrations"))
        for file in within.rglob("test_*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }


def test_every_test_named_is_there() -> None:
    assert set(NAMED.findall(PAGE)) - names_of_tests() == set()
