"""python -m notebooks.render: run the notebooks and write each as a page, a file that loads nothing else."""

import html
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from actfit.coefficients import command
from actfit.coefficients.command import Misuse, Parser
from actfit.coefficients.files import write_text
from notebooks.folder import ready

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NAMES = ("error_curves", "bits_against_error", "joint_codes", "fitting_slopes", "memory", "budget")
NEEDED = ("torch", "ipykernel", "ipywidgets", "nbclient", "nbconvert")  # besides this package's dependencies
DEFAULT = Path("build", "notebooks")
TIMEOUT = 600  # seconds for a cell
VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --page: #fff; --faint: #656d76; --code: #f6f8fa; --line: #d0d7de; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --page: #0d1117; --faint: #8d96a0; --code: #161b22; --line: #30363d; }
}
body { background: var(--page); color: var(--text); font: 1rem/1.55 system-ui, sans-serif; margin: 0 auto;
  max-width: 64rem; padding: 1rem; }
pre { background: var(--code); border: 1px solid var(--line); border-radius: 6px; font-size: 0.8rem; overflow-x: auto;
  padding: 0.7rem; }
.output_area pre { background: none; border: 0; padding: 0; white-space: pre-wrap; }
.prompt, .anchor-link { display: none; }
img { background: #fff; border-radius: 6px; height: auto; max-width: 100%; }
.controls { border-left: 3px solid var(--line); color: var(--faint); padding-left: 0.7rem; }
"""


def execute(notebook: Any) -> Any:
    """Run all cells, and return the notebook with its outputs and the state of its widgets.

    Raises nbclient's CellExecutionError for a cell that fails.
    """
    return client(notebook).execute(env=environment())


def client(notebook: Any) -> Any:
    """The client that runs the notebook's cells in this folder."""
    from nbclient import NotebookClient  # optional, as is nbconvert

    from notebooks.patient import Manager

    return NotebookClient(
        notebook,
        kernel_manager_class=Manager,
        timeout=TIMEOUT,
        kernel_name="python3",
        extra_arguments=["--log-level=50"],  # errors in cells are raised nevertheless
        resources={"metadata": {"path": str(HERE)}},
    )


def environment() -> dict[str, str]:
    """The kernel's environment: this one, with this repository's packages on the path."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def pictures(notebook: Any) -> list[str]:
    """The PNG pictures of a notebook that has run, in base64, including those inside widgets."""
    return [
        output["data"]["image/png"]
        for cell in still(notebook).cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]


def still(notebook: Any) -> Any:
    """A copy with each widget replaced by its controls' values, in a line, and its last outputs."""
    from nbformat import from_dict
    from nbformat.v4 import new_output

    states = notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})
    copy = from_dict({**notebook, "metadata": {k: v for k, v in notebook.metadata.items() if k != "widgets"}})
    copy.cells = [from_dict(cell) for cell in notebook.cells]
    for cell in copy.cells:
        outputs: list[Any] = []
        for output in cell.get("outputs", []):
            view = output.get("data", {}).get(VIEW)
            if view is None:
                outputs.append(output)
                continue
            parts = list(_leaves(view["model_id"], states))
            controls = [part for part in parts if isinstance(part, str)]
            if controls:
                line = f'<p class="controls">{html.escape(" · ".join(controls))}</p>'
                outputs.append(new_output("display_data", {"text/html": line}))
            outputs += [from_dict(part) for part in parts if not isinstance(part, str)]
        if "outputs" in cell:
            cell.outputs = outputs
    shown = [
        picture for cell in copy.cells for picture in cell.get("outputs", []) if "image/png" in picture.get("data", {})
    ]
    for i, picture in enumerate(shown, 1):
        picture.metadata["image/png"] = {
            **picture.metadata.get("image/png", {}),
            "alt": f"Picture {i}: {title(notebook)}",
        }
    return copy


def title(notebook: Any) -> str:
    """The first line of a notebook."""
    first = next(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return str(first.partition("\n")[0].lstrip("# "))


def _leaves(model: str, states: Mapping[str, Any]) -> Iterator[str | dict[str, Any]]:
    """The controls' values and the outputs of a widget and of the widgets inside it."""
    state = states[model]["state"]
    if "children" in state:
        for child in state["children"]:
            yield from _leaves(child.removeprefix("IPY_MODEL_"), states)
    elif "outputs" in state:
        yield from state["outputs"]
    elif "_options_labels" in state:
        yield f"{state['description']}: {state['_options_labels'][state['index']]}"
    elif "value" in state:
        value = state["value"]
        shown = ("no", "yes")[value] if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else value
        yield f"{state['description']}: {shown}"


def page(notebook: Any) -> str:
    """A notebook that has run, as HTML."""
    from nbconvert import HTMLExporter
    from pygments.formatters import HtmlFormatter

    body, _ = HTMLExporter(template_name="basic").from_notebook_node(still(notebook))
    light, dark = (
        HtmlFormatter(style=style, nobackground=True).get_style_defs(".highlight")
        for style in ("default", "github-dark")
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title(notebook))}</title>\n"
        f"<style>{STYLE}{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n</style>\n"
        f"</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad input."""
    parser = Parser(
        prog="python -m notebooks.render",
        description=f"Run the notebooks ({', '.join(NAMES)}), and write each as a page, DIR/NAME.html.",
    )
    parser.add_argument("--out", default=str(DEFAULT), metavar="DIR", help=f"default: {DEFAULT}")
    options = parser.parse_args(arguments)
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        raise Misuse(f"{', '.join(missing)} must be installed to run notebooks; try: pip install {' '.join(missing)}")
    import nbformat
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    folder = ready(options.out, [f"{name}.html" for name in NAMES])
    pages = {}
    for i, name in enumerate(NAMES, 1):
        _progress(f"{i} of {len(NAMES)}: {name}")
        try:
            ran = execute(nbformat.read(HERE / f"{name}.ipynb", 4))
        except CellExecutionError as error:
            command.say("render", f"notebook {name} must run, and does not: {error.ename}: {_first(error.evalue)}")
            return command.BAD
        except (CellTimeoutError, DeadKernelError) as error:
            command.say("render", f"notebook {name} must run, and does not: {_first(str(error))}")
            return command.BAD
        pages[folder / f"{name}.html"] = page(ran)
    for path, text in pages.items():  # only after all have run
        write_text(path, text)
        print(path)
    return command.GOOD


def _first(text: str) -> str:
    """The first line of a text."""
    return text.strip().partition("\n")[0]


def _progress(line: str) -> None:
    if sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(command.run("render", main))
