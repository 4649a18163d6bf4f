"""What docs/fewbit.md and docs/joint.md say of proven bounds, and where the first bounds are taken from."""

import subprocess

import pytest

from benchmarks import proofs
from benchmarks.pages import of_any
from benchmarks.parsers import PROOFS_REVISION
from benchmarks.proofs_page import NAME, joint_section, tables_section
from coefficients import load
from coefficients.command import Misuse


def lines(section: str) -> dict[str, list[str]]:
    """Cells by the first cell of their line, of the first table of a section."""
    cells = [line.strip("| ").split(" | ") for line in section.partition("\n\n")[0].splitlines()]
    return {name: rest for name, *rest in cells}


@pytest.fixture(scope="module")
def tables() -> str:
    return tables_section()


def test_every_table_is_as_near_to_its_bound_as_was_asked(tables: str) -> None:
    table = lines(tables)
    assert table["asked for"] == ["1.0e-05"] * 4 + ["1.0e-04"] * 4
    assert table["tables now"] == ["24"] * 8
    gaps, goals, first = (
        list(map(float, table[name])) for name in ("largest gap now", "asked for", "largest gap at first")
    )
    assert all(gap <= goal < before for gap, goal, before in zip(gaps, goals, first, strict=True))
    joint = lines(joint_section())
    assert all(float(gap) <= float(goal) for gap, goal in zip(joint["largest gap"], joint["asked for"], strict=True))


def test_gaps_are_those_of_the_files_rounded_up(tables: str) -> None:
    error = load("gelu", "fewbit-8bit")["error"]
    of_gaps = tables.partition("Gaps,")[2]
    (printed,) = (
        float(line.split(" | ")[-1].strip(" |")) for line in of_gaps.splitlines() if line.startswith("| gelu |")
    )
    exact = 1 - error["lower_bound"] / error["l2_squared"]
    assert exact <= printed < exact + 0.1 * 10**-5  # of its second digit


@pytest.mark.slow
def test_the_first_gaps_are_those_of_that_revision() -> None:
    known = subprocess.run(
        ["git", "cat-file", "-e", PROOFS_REVISION], cwd=proofs.ROOT, capture_output=True, check=False
    )
    if known.returncode:
        pytest.skip("git has not the whole history here")
    measured = {(row.what, row.size["bits"]): row.median for row in proofs.measure(PROOFS_REVISION)}
    assert measured == {(row["what"], row["size"]["bits"]): row["median"] for row in of_any(NAME)}
    assert len(measured) == 4 * 24 + 4 * 2


def test_a_revision_that_is_none_is_refused() -> None:
    with pytest.raises(Misuse, match="--revision must be one of this git repository, got 'nowhere'"):
        proofs.measure("nowhere")
