"""The notebooks: no outputs in git; they run top to bottom, their widgets redraw, and they become pages."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actfit.coefficients import command, load
from notebooks import render
from notebooks.gallery.page import NOTEBOOKS

pytest.importorskip("nbclient", reason="needs the packages of notebooks: pip install -e '.[notebooks]'")
import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

Shown = tuple[list[str], str]

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def test_all_notebooks_are_known() -> None:
    assert {path.stem for path in render.HERE.glob("*.ipynb")} == set(render.NAMES)


def test_the_gallery_lists_every_notebook() -> None:
    assert tuple(NOTEBOOKS) == render.NAMES


@pytest.mark.parametrize("name", render.NAMES)
def test_nothing_of_a_run_is_kept(name: str) -> None:
    text = (render.HERE / f"{name}.ipynb").read_text("utf-8")
    document = json.loads(text)
    nbformat.validate(document)
    assert document["metadata"] == METADATA
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    for cell in document["cells"]:
        assert cell["metadata"] == {}
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)
        assert cell["source"][-1].strip()
    # As Jupyter writes it, so that diffs show real changes only.
    assert text == json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def shown(notebook: Any) -> Shown:
    """The pictures and the printed text."""
    texts = [
        output["text"]
        for cell in render.still(notebook).cells
        for output in cell.get("outputs", [])
        if output["output_type"] == "stream"
    ]
    return render.pictures(notebook), "".join(texts)


def run(name: str, *changes: str) -> tuple[Any, list[Shown]]:
    """The page of the notebook after a run, and what it shows then and after each change, run as another cell."""
    notebook = nbformat.read(render.HERE / f"{name}.ipynb", 4)
    client = render.client(notebook)
    with client.setup_kernel(env=render.environment()):
        for i, cell in enumerate(notebook.cells):
            client.execute_cell(cell, i)
        client.set_widgets_metadata()
        page, seen = render.page(notebook), [shown(notebook)]
        for change in changes:
            notebook.cells.append(new_code_cell(change))
            client.execute_cell(notebook.cells[-1], len(notebook.cells) - 1)
            client.set_widgets_metadata()
            seen.append(shown(notebook))
    return page, seen


def check_page(page: str, pictures: list[str], controls: str) -> None:
    """Assert that the page has the pictures and the controls' values, and runs nothing."""
    assert page.count("data:image/png;base64,") == len(pictures)
    assert "<script" not in page
    assert "widget-view" not in page
    assert controls in page


@pytest.mark.slow
def test_error_curves() -> None:
    page, seen = run(
        "error_curves",
        'controls["bits"].value = 5',
        'controls["log"].value = True',
        'controls["method"].value = "InvAct"',
        'controls["weight"].value = "norm(0,2)"',
        'controls["function"].value = "silu"',
        'controls["lo"].value = 20',
        'controls["lo"].value = -5; controls["method"].value = "few bits, even f′"',
        'controls["function"].value = "tanh"',
        'controls["weight"].value = "nrom"',
    )
    pictures = [of_change for of_change, _ in seen]
    assert [len(of_change) for of_change in pictures] == [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert len({of_change[0] for of_change in pictures[:6]}) == 6
    assert [text for _, text in seen[:6]] == [""] * 6
    assert [text for _, text in seen[6:]] == [
        "domain must be two finite numbers, the lower first, got 20 10\n",
        "levels even needs an even f', and that of silu is not; try --levels shared\n",
        "levels even needs a domain symmetric about 0, got -5 10; try --domain -10 10\n",
        "unknown weight 'nrom': uniform, a distribution or a file; did you mean norm or uniform or gennorm?\n",
    ]
    check_page(page, pictures[0], "function: gelu · method: few bits, shared levels · bits: 3 · y stored in: bfloat16")


@pytest.mark.slow
def test_bits_against_error() -> None:
    page, seen = run("bits_against_error", 'function.value = "tanh"')
    (overview, gelu), (_, tanh) = (pictures for pictures, _ in seen)
    assert gelu != tanh
    check_page(page, [overview, gelu], "function: gelu")


@pytest.mark.slow
def test_joint_codes() -> None:
    page, seen = run(
        "joint_codes",
        'function.value = "silu"',
        'controls["bits"].value = 2',
        'controls["output_weight"].value = 4',
        'controls["weight"].value = "norm(0,0.3)"',
        'controls["function"].value = "tanh"',
        'controls["output_weight"].value = -1',
        'controls["output_weight"].value = 1; controls["weight"].value = "nrom"',
    )
    pictures = [of_change for of_change, _ in seen]
    assert [len(of_change) for of_change in pictures] == [2, 2, 2, 2, 2, 2, 1, 1]
    assert len({of_change[0] for of_change in pictures}) == 2  # of both functions
    assert len({of_change[1] for of_change in pictures[1:6]}) == 5
    match = re.fullmatch(r"f′ (.*), f (.*); the sum is proven to be within (.*)% of the least\.\n", seen[0][1])
    error = load("gelu", "joint-3bit")["error"]
    shares = [f"{error[key]:.3g}" for key in ("derivative_share", "output_share")]
    assert [*match.groups()] == [*shares, f"{100 * error['gap']:.2f}"]
    assert seen[6][1] == "lambda must be from 1e-12 to 1e+12, got -1; 1 counts both alike\n"
    assert seen[7][1].startswith("unknown weight 'nrom': ")
    check_page(page, pictures[0], "function: gelu · bits: 3 · λ: 1 · weight: norm")


@pytest.mark.slow
def test_fitting_slopes() -> None:
    page, seen = run("fitting_slopes", 'function.value = "silu"', 'function.value = "tanh"')
    first, silu, tanh = (pictures for pictures, _ in seen)
    assert [len(first), len(silu), len(tanh)] == [3, 3, 2]
    assert silu[0] != first[0]
    assert seen[2][1] == "tanh has no smooth minimum, and so no root; try gelu, silu or mish\n"
    check_page(page, first, "function: gelu")


@pytest.mark.slow
def test_memory() -> None:
    page, seen = run(
        "memory",
        'controls["model"].value = "mlp"',  # which takes least
        'controls["batch"].value = 3',
        'controls["bits"].value = 8',
    )
    pictures = [of_change for of_change, _ in seen]
    assert [len(of_change) for of_change in pictures] == [1] * 4
    assert len({of_change[0] for of_change in pictures}) == 4
    assert ", 8 bits " in seen[3][1]
    check_page(page, pictures[0], "model: block · batch: 2 · bits: 4")


# the command


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A function that replaces the notebooks by two small ones, the second with the given cell; returns --out."""

    def make(source: str) -> Path:
        for name, code in (("first", "print('<one>')"), ("second", source)):
            notebook = new_notebook(cells=[new_markdown_cell(f"# The {name}"), new_code_cell(code)], metadata=METADATA)
            nbformat.write(notebook, tmp_path / f"{name}.ipynb")
        monkeypatch.setattr(render, "HERE", tmp_path)
        monkeypatch.setattr(render, "NAMES", ("first", "second"))
        return tmp_path / "pages" / "of" / "them"

    return make


@pytest.mark.slow
def test_the_command_writes_all_pages(two: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    out = two("import actfit, pathlib\nprint(pathlib.Path.cwd().name)")
    assert render.main(["--out", str(out)]) == 0
    stdout, stderr = capsys.readouterr()
    assert stdout.split() == [str(out / "first.html"), str(out / "second.html")]
    assert stderr.splitlines() == ["1 of 2: first", "2 of 2: second"]
    assert sorted(path.name for path in out.iterdir()) == ["first.html", "second.html"]
    first, second = (path.read_text("utf-8") for path in sorted(out.iterdir()))
    assert "<title>The first</title>" in first
    assert "&lt;one&gt;" in first
    assert render.HERE.name in second  # it ran in the notebooks' folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise RuntimeError('as it should,\\nin two lines')", "RuntimeError: as it should,"),
        ("import os\nos._exit(1)", "Kernel died"),
    ],
)
def test_no_page_is_written_where_a_notebook_fails(
    two: Callable[[str], Path], capsys: pytest.CaptureFixture[str], source: str, why: str
) -> None:
    out = two(source)
    assert render.main(["--out", str(out)]) == 1
    stdout, stderr = capsys.readouterr()
    assert stdout == ""
    assert stderr.splitlines()[2:] == [f"render: notebook second must run, and does not: {why}"]
    assert list(out.iterdir()) == []


def test_what_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(render, "NEEDED", ("no_such_one", "nbclient", "nor_this"))
    out = tmp_path / "out"
    assert command.run("render", lambda: render.main(["--out", str(out)])) == 2
    said = "no_such_one, nor_this must be installed to run notebooks; try: pip install no_such_one nor_this"
    assert capsys.readouterr() == ("", f"render: {said}\n")
    assert not out.exists()


def test_misuse_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    (tmp_path / "taken" / "memory.html").mkdir(parents=True)
    for out, problem in (
        ("", "--out must be a folder, got ''; try --out ."),
        (file / "below", f"--out must be a folder, got {str(file / 'below')!r}, where a file is in the way"),
        (
            tmp_path / "taken",
            f"--out must be a folder in which memory.html can be written, got {str(tmp_path / 'taken')!r}",
        ),
    ):
        arguments = ["--out", str(out)]
        assert command.run("render", lambda arguments=arguments: render.main(arguments)) == 2
        assert capsys.readouterr() == ("", f"render: {problem}\n")


@pytest.mark.slow
def test_budget() -> None:
    page, seen = run("budget", 'controls["budget"].value = 0.4', 'controls["by"].value = "peak"')
    pictures = [of_change for of_change, _ in seen]
    assert [len(of_change) for of_change in pictures] == [1, 1, 1]
    assert len({of_change[0] for of_change in pictures}) == 3
    budgets = [re.search(r"budget ([0-9.]+): kept for backward", text)[1] for _, text in seen]
    assert budgets == ["0.2", "0.4", "0.4"]
    assert all("error of the gradient: " in text for _, text in seen)
    check_page(page, pictures[0], "budget: 0.2 · bytes: kept for backward")
