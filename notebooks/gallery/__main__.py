"""python -m notebooks.gallery: all stored fits on one page, which is a file of its own and loads nothing."""

import sys
from collections.abc import Sequence
from pathlib import Path

from coefficients import command
from coefficients.command import Misuse, Parser
from coefficients.schema import CoefficientError
from coefficients.store import write_text
from fitting.errors import InputError
from notebooks.folder import ready
from notebooks.gallery.page import page

DEFAULT = Path("build", "gallery")
NAME = "index.html"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse and the errors of files for bad input."""
    parser = Parser(prog="python -m notebooks.gallery", description=f"Write all stored fits as a page, DIR/{NAME}.")
    parser.add_argument("--out", default=str(DEFAULT), metavar="DIR", help=f"default: {DEFAULT}")
    parser.add_argument("--root", metavar="DIR", help="other coefficient files than the packaged ones")
    options = parser.parse_args(arguments)
    if options.root is not None and not (options.root and Path(options.root).is_dir()):
        raise Misuse(f"--root must be a folder of coefficient files, got {options.root!r}")
    out = ready(options.out, [NAME])
    text = page(None if options.root is None else Path(options.root), out, _progress)
    write_text(out / NAME, text)
    print(out / NAME)
    return command.GOOD


def _progress(name: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"{name:20}", end="\r", file=sys.stderr, flush=True)  # the next line covers it


if __name__ == "__main__":
    sys.exit(command.run("gallery", main, (CoefficientError, InputError)))
