"""python -m notebooks.gallery: all stored fits on one page, which is a file of its own and loads nothing."""

from actfit.coefficients import command
from notebooks.gallery.options import check, parser

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("gallery", lambda: check(parser().parse_args()))
    command.exit_without("jinja2", "gallery", "try: pip install jinja2")

import sys
from collections.abc import Sequence
from pathlib import Path

from actfit.coefficients.files import write_text
from actfit.coefficients.schema import CoefficientError
from actfit.fitting.errors import InputError
from notebooks.folder import ready
from notebooks.gallery.options import NAME
from notebooks.gallery.page import page


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse and the errors of files for bad input."""
    options = parser().parse_args(arguments)
    check(options)
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
