"""The command's options, and what can be said of them before its libraries are there."""

import argparse
import math

from coefficients import command
from fitting import options as shared
from fitting.errors import InputError

PROG = "python -m fitting.fewbit"
FORMATS = ("table", "json", "csv", "latex")
KINDS = ("best", "shared", "contiguous", "even")
MAX_BITS = 8


def parser() -> command.Parser:
    """What the command takes."""
    found = command.Parser(
        prog=PROG,
        description="The best approximation of an activation's derivative by 2**bits levels, and a proof of it.",
        epilog="Memory: a layer keeps `bits` bits an element for backward instead of a whole number.",
    )
    shared.add_function(found, "every table that the project ships (or all functions at --bits)")
    how = found.add_argument_group("how")
    how.add_argument("--bits", metavar="B", help=f"1 to {MAX_BITS}; 2**B levels")
    how.add_argument(
        "--max-error", metavar="E", help="instead of --bits: the fewest bits whose squared error is at most E"
    )
    how.add_argument("--levels", metavar="KIND", default="best", help=f"{', '.join(KINDS)} (default: best)")
    how.add_argument(
        "--weight",
        metavar="W",
        default="uniform",
        help="uniform, a scipy.stats distribution like norm(0,2), or a file of samples",
    )
    how.add_argument("--domain", metavar=("A", "B"), nargs=2, help="default: -10 10, or where the weight is")
    how.add_argument(
        "--budget",
        metavar="S",
        help="seconds after which a search is cut short (with --all: of each table), its gap being what is proven "
        "by then; the result depends on the machine, and is written by --out only",
    )
    shared.add_output(found, FORMATS, "draw f', the steps and the error (.png, .svg, .pdf)")
    shared.add_workers(found)
    return found


def check(options: argparse.Namespace) -> None:
    """Raise `InputError` for values that are none, and for options that need or exclude each other."""
    shared.check_function(options)
    shared.check_output(options, FORMATS)
    if options.all:
        shared.check_alone(options, ("param", "max_error", "out", "plot"))
        if options.levels == "even":
            raise InputError("--levels even goes with one function, not with --all: not every f' is even")
    else:
        if (options.bits is None) == (options.max_error is None):
            got = "neither" if options.bits is None else "both"
            raise InputError(f"one of --bits (1 to 8) and --max-error must say how fine, got {got}")
        if options.max_error is not None and options.budget is not None:
            raise InputError("--budget goes with --bits: a search cut short does not know the fewest bits")
    shared.check_workers(options)
    if options.levels not in KINDS:
        raise InputError(f"levels must be one of {', '.join(KINDS)}, got {options.levels!r}")
    bits(options)
    ends(options)
    max_error(options)
    budget(options)
    shared.jobs(options.jobs)


def bits(options: argparse.Namespace) -> int | None:
    """What --bits says."""
    if options.bits is None:
        return None
    found = shared.whole("bits", options.bits, f" from 1 to {MAX_BITS}")
    if not 1 <= found <= MAX_BITS:
        raise InputError(f"bits must be a whole number from 1 to {MAX_BITS}, got {found}")
    return found


def budget(options: argparse.Namespace) -> float | None:
    """What --budget says."""
    if options.budget is None:
        return None
    found = shared.number("budget", options.budget)
    if not (math.isfinite(found) and found > 0):
        raise InputError(f"budget must be a positive number of seconds, got {found:g}")
    return found


def max_error(options: argparse.Namespace) -> float | None:
    """What --max-error says."""
    if options.max_error is None:
        return None
    found = shared.number("max-error", options.max_error)
    if not (math.isfinite(found) and found >= 0):
        raise InputError(f"max-error must be finite and at least 0, got {found}")
    return found


def ends(options: argparse.Namespace) -> tuple[float, float] | None:
    """What --domain says."""
    if options.domain is None:
        return None
    lo, hi = (shared.number("domain", end) + 0.0 for end in options.domain)  # + 0.0 makes 0 of -0
    if not (math.isfinite(lo) and math.isfinite(hi) and lo < hi):
        raise InputError(f"domain must be two finite numbers, the lower first, got {lo:g} {hi:g}")
    return lo, hi
