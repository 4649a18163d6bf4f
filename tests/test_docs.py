"""Every command and snippet in README and docs runs, and prints what the page shows."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from actfit.coefficients.schema import schema
from actfit.kernels.planning.plan import Bytes, Errors, Plan, PlannedSite
from benchmarks.report import PAGES as MEASURED
from benchmarks.report import rendered
from tests.forks import Forks

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


# Blocks of commands that another block has, too, with other values of the same options.
REPEATS = {
    "docs/reference/commands-0": "docs/reference/coefficients-0",
    "docs/how-to/add_function-0": "docs/how-to/fit-0",
    "docs/reference/functions-1": "docs/how-to/fit-0",
}


def blocks(language: str) -> list[object]:
    """Of several that are the same but for comments, the last."""
    bodies = {
        re.sub(r" +#.*", "", body): (body, f"{page.relative_to(ROOT).with_suffix('')}-{number}")
        for page in PAGES
        if page.parent.name != "tutorials"  # test_tutorials runs their blocks together
        for number, (block_language, body) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
        if block_language == language
    }
    return [
        pytest.param(body, id=name, marks=[pytest.mark.slow, pytest.mark.repeats] if name in REPEATS else [])
        for body, name in bodies.values()
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to run in, with the shipped tables at the checkout's paths, where they count as packaged."""
    for name in ("actfit", "coefficients"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("fitting", "codegen", "kernels"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks(environment=ENVIRONMENT) as forks:
        yield forks


@pytest.fixture(scope="module")
def strict_forks() -> Iterator[Forks]:
    """Forks in which a warning is an error."""
    compiling = "ignore::DeprecationWarning:torch.jit._script"  # of torch itself, whatever is compiled
    with Forks("-W", "error", "-W", compiling, environment=ENVIRONMENT) as forks:
        yield forks


def run(words: list[str], folder: Path, forks: Forks) -> str:
    if words[0] == "actfit" or words[:2] == ["python", "-m"]:
        module, *words = words if words[0] == "actfit" else words[2:]
        status, out, err = forks.module(module, words, folder)
    else:  # a dry run: otherwise it would run the tests within the tests
        assert words[0] == "make"
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
        status, out, err = done.returncode, done.stdout, done.stderr
    assert status == 0, err
    return out


@pytest.mark.slow
@pytest.mark.parametrize("body", blocks("sh"))
def test_commands_run(body: str, folder: Path, forks: Forks) -> None:
    for line in body.splitlines():
        run(shlex.split(line, comments=True), folder, forks)


@pytest.mark.slow
@pytest.mark.parametrize("body", blocks("console"))
def test_commands_print_what_is_shown(body: str, folder: Path, forks: Forks) -> None:
    command, _, shown = body.partition("\n")
    assert run(shlex.split(command.removeprefix("$ ")), folder, forks) == shown


@pytest.mark.slow
@pytest.mark.parametrize("body", blocks("python"))
def test_snippets_run(body: str, folder: Path, strict_forks: Forks) -> None:
    status, out, err = strict_forks.code(body, folder)
    assert status == 0, err
    assert out


@pytest.mark.parametrize("page", MEASURED, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_say_what_was_measured(page: Path) -> None:
    assert rendered(page) == page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def properties(part: object) -> Iterator[str]:
    """The names of fields in a JSON Schema."""
    for key, value in part.items() if isinstance(part, dict) else ():
        yield from value if key == "properties" else ()
        yield from properties(value)


@pytest.mark.parametrize(
    ("page", "fields"),
    [
        ("coefficients", {*properties(schema())}),
        ("plan_file", {field.name for part in (Plan, PlannedSite, Bytes, Errors) for field in fields(part)}),
    ],
)
def test_the_page_of_a_file_names_every_field(page: str, fields: set[str]) -> None:
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
    assert fields
    assert {field for field in fields if f"`{field}`" not in text} == set()


def test_blocks_are_found() -> None:
    assert all(blocks(language) for language in ("sh", "console", "python"))
    assert {*REPEATS, *REPEATS.values()} <= {block.id for block in blocks("sh")}
    indented = [
        page.name for page in PAGES if re.search(r"^    (actfit|python|make) ", page.read_text(encoding="utf-8"), re.M)
    ]
    assert not indented, "commands belong in fenced blocks, where they are run"
