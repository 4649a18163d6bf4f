"""The command's options, and the checks that need no library."""

import argparse
from pathlib import Path

from actfit.coefficients.command import Misuse, Parser

DEFAULT = Path("build", "gallery")
NAME = "index.html"


def parser() -> Parser:
    """The parser of the command's options."""
    made = Parser(prog="python -m notebooks.gallery", description=f"Write all stored fits as a page, DIR/{NAME}.")
    made.add_argument("--out", default=str(DEFAULT), metavar="DIR", help=f"default: {DEFAULT}")
    made.add_argument("--root", metavar="DIR", help="other coefficient files than the packaged ones")
    return made


def check(options: argparse.Namespace) -> None:
    """Raise Misuse if --root is not a folder."""
    if options.root is not None and not (options.root and Path(options.root).is_dir()):
        raise Misuse(f"--root must be a folder of coefficient files, got {options.root!r}")
