"""The options of the command, and the checks of them that need none of its libraries."""

import argparse
import math

from actfit.coefficients import command, naming
from actfit.fitting import options as shared
from actfit.fitting.errors import InputError, nearest

PROG = "actfit invact"
PRINTED = ("table", "json", "csv", "latex")
DTYPES = ("bfloat16", "float16", "float32")
DEFAULT = naming.ENGINES
ENGINES = (*DEFAULT, "operon", "pysr")
PUBLISHED = "published"


def parser() -> command.Parser:
    """The parser of the command's options."""
    result = command.Parser(
        prog=PROG,
        description="Formulas for an activation's derivative from its stored output y and one bit, or two.",
        epilog="Memory: a layer keeps the output, which the next one keeps anyway, and 2 bits an element, 1 or none.",
    )
    shared.add_function(result, "every file that the project ships (or all functions in --dtype)")
    method = result.add_argument_group("how")
    method.add_argument("--dtype", metavar="D", help=f"of the stored output: {', '.join(DTYPES)}")
    method.add_argument(
        "--bits",
        metavar="B",
        help="beside y: 1, the branch (default), or 2, and which way y was rounded (16-bit dtypes)",
    )
    method.add_argument(
        "--engine",
        metavar="E,E",
        help=f"some of {','.join(ENGINES)}; all; or {PUBLISHED}, the paper's (default: {','.join(DEFAULT)})",
    )
    method.add_argument("--max-error", metavar="E", help="instead of the dtype's own rule: the largest |q - g| allowed")
    method.add_argument(
        "--weight", metavar="W", help=f"of x, as in fitting.fewbit (default: {naming.WEIGHTS['invact']})"
    )
    method.add_argument("--seed", metavar="N", help="random seed of the stochastic engines (default: 0)")
    method.add_argument("--budget", metavar="N", help="starts of a template, runs of operon, iterations of pysr")
    method.add_argument(
        "--timeout", metavar="SECONDS", help="of each search by pysr; one that it ends is not repeatable"
    )
    method.add_argument(
        "--template", metavar="TEXT", action="append", default=[], help='as in "1 + (a + b*s)*exp(c*s)"; repeatable'
    )
    method.add_argument(
        "--start",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="where a template's constant begins (default: 1); repeatable",
    )
    method.add_argument("--import-pysr", metavar="DIR", help="also take the formulas of a PySR run made elsewhere")
    output = shared.add_output(result, PRINTED, "draw g, q, the error and the front (.png, .svg, .pdf)")
    output.add_argument("--front", action="store_true", help="print the whole front, not only what is near the choice")
    shared.add_workers(result)
    return result


def check(options: argparse.Namespace) -> None:
    """Raise `InputError` for values that are malformed, and for options that need or exclude each other."""
    shared.check_function(options)
    shared.check_output(options, PRINTED)
    if options.front and (options.format != "table" or options.out == "-"):
        raise InputError("--front goes with --format table; the others hold the whole front anyway")
    if options.all:
        shared.check_alone(options, ("param", "template", "start", "import_pysr", "out", "plot", "front", "bits"))
    elif options.dtype is None:
        raise InputError(f"say how y is stored by --dtype: {', '.join(DTYPES)}")
    shared.check_workers(options)
    if options.dtype is not None and options.dtype not in DTYPES:
        rule = f"dtype must be one of {', '.join(DTYPES)}, got {options.dtype!r}"
        raise InputError(f"{rule}; {nearest(options.dtype, DTYPES)}")
    if options.bits not in (None, "1", "2"):
        raise InputError(f"bits must be 1 or 2, got {options.bits!r}")
    for name in ("seed", "budget"):
        if getattr(options, name) is not None:
            shared.whole(name, getattr(options, name))
    for name in ("max_error", "timeout"):
        if getattr(options, name) is not None:
            shared.number(name.replace("_", "-"), getattr(options, name))
    shared.jobs(options.jobs)


def check_max_error(limit: float) -> None:
    """Raise `InputError` unless `limit` is positive and finite."""
    if not 0 < limit < math.inf:
        raise InputError(f"max-error must be positive and finite, got {limit:g}")
