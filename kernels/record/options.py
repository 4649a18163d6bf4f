"""The command's options, and checks of them that need no PyTorch."""

import argparse
from pathlib import Path

from actfit.coefficients import command
from actfit.coefficients.functions import names
from actfit.kernels.errors import KernelError

PROG = "actfit record"
FORMATS = ("table", "json")


def parser() -> command.Parser:
    """The command's parser."""
    parser = command.Parser(
        prog=PROG, description="Record what each activation of a model is given, for actfit fewbit --weight."
    )
    parser.add_argument("model", metavar="MODULE:FUNCTION", help="a function that gives a model and its inputs")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder for a file of samples for each activation")
    parser.add_argument("--fn", metavar="NAME", help="this function only (default: all of the catalogue)")
    parser.add_argument("--format", metavar="F", default="table", help=f"{', '.join(FORMATS)} (default: table)")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


def check(options: argparse.Namespace) -> None:
    """Raise KernelError for invalid values."""
    if not command.is_function_path(options.model):
        raise KernelError(f"model must be module:function that gives model and inputs, got {options.model!r}")
    if options.fn not in (None, *names()):
        raise KernelError(f"fn must be one of {', '.join(names())}, got {options.fn!r}")
    if options.format not in FORMATS:
        raise KernelError(f"format must be one of {', '.join(FORMATS)}, got {options.format!r}")
    if not options.out or (Path(options.out).exists() and not Path(options.out).is_dir()):
        raise KernelError(f"out must be a folder, got {options.out!r}")
