"""The options of the command, and their checks, which need none of its libraries."""

import argparse
from pathlib import Path

from actfit.coefficients import command
from actfit.fitting import options as shared
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.rules import (
    KINDS,
    MAX_BITS,
    check_bits,
    check_budget,
    check_domain,
    check_levels,
    check_max_error,
)
from actfit.fitting.joint.rules import check_output_weight

PROG = "actfit fewbit"
FORMATS = ("table", "json", "csv", "latex")


def parser() -> command.Parser:
    """The parser of the command's options."""
    result = command.Parser(
        prog=PROG,
        description="The best approximation of an activation's derivative by 2**bits levels, and a proof of it.",
        epilog="Memory: a layer keeps `bits` bits an element for backward instead of a whole number.",
    )
    shared.add_function(result, "every table that the project ships (or all functions at --bits)")
    method = result.add_argument_group("how")
    method.add_argument(
        "--bits", metavar="B", help=f"1 to {MAX_BITS}; 2**B levels; 1-{MAX_BITS} compares all, and stores none"
    )
    method.add_argument(
        "--max-error", metavar="E", help="instead of --bits: the fewest bits whose squared error is at most E"
    )
    method.add_argument("--levels", metavar="KIND", default="best", help=f"{', '.join(KINDS)} (default: best)")
    method.add_argument(
        "--joint", action="store_true", help="one code for both f' and f, which the layer after the activation saves"
    )
    method.add_argument(
        "--lambda",
        metavar="L",
        dest="output_weight",
        help="with --joint: what the squared error of f counts beside that of f' (default: 1)",
    )
    method.add_argument(
        "--weight",
        metavar="W",
        help="uniform, a scipy.stats distribution like norm(0,2), or a file of samples (default: uniform; with "
        "--joint: norm)",
    )
    method.add_argument(
        "--record",
        metavar="MODULE:FUNCTION",
        help="in place of --weight: a table for each call of f in your own model, from its inputs there; the function "
        "gives the model and its inputs, and --out names a folder",
    )
    method.add_argument("--domain", metavar=("A", "B"), nargs=2, help="default: -10 10, or where the weight is")
    method.add_argument(
        "--budget",
        metavar="S",
        help="seconds after which a search is cut short (with --all: of each table), its gap being what is proven "
        "by then; the result depends on the machine, and is written by --out only",
    )
    shared.add_output(
        result,
        FORMATS,
        "draw f', the steps and the error; with --bits 1-8 the error against the bits, with --joint both errors"
        " against lambda (.png, .svg, .pdf)",
    )
    shared.add_workers(result)
    return result


def check(options: argparse.Namespace) -> None:
    """Raise `InputError` for values that are malformed, and for options that need or exclude each other."""
    shared.check_function(options)
    shared.check_output(options, FORMATS)
    _check_record(options)
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
    check_levels(options.levels)
    _check_joint(options)
    if widths(options):
        _check_several(options)
    elif options.bits is not None:
        bits(options)
    domain(options)
    max_error(options)
    budget(options)
    shared.jobs(options.jobs)


def _check_several(options: argparse.Namespace) -> None:
    for name in ("all", "joint", "record", "out", "root"):
        if getattr(options, name) not in (None, False):
            raise InputError(f"--{name} goes with one number of bits, got {options.bits}")
    if options.format != "table":
        raise InputError(f"--format goes with one number of bits, got {options.bits}")


def _check_record(options: argparse.Namespace) -> None:
    if options.record is None:
        return
    if not command.is_function_path(options.record):
        raise InputError(f"record must be module:function that gives model and inputs, got {options.record!r}")
    for name in ("expr", "all", "weight", "max_error", "root", "plot"):
        if getattr(options, name) not in (None, False):
            raise InputError(f"--{name.replace('_', '-')} goes without --record, which fits --fn at --bits")
    if options.format != "table":
        raise InputError("--format goes without --record")
    if options.out in (None, "", "-") or (Path(options.out).exists() and not Path(options.out).is_dir()):
        raise InputError(f"--record needs a folder for its tables, as --out tables, got {options.out!r}")


def _check_joint(options: argparse.Namespace) -> None:
    if not options.joint:
        if options.output_weight is not None:
            raise InputError("--lambda goes with --joint")
        return
    if options.levels != "best":
        raise InputError("--levels goes without --joint, whose codes are of successive intervals")
    for name in ("max_error", "budget"):
        if getattr(options, name) is not None:
            raise InputError(f"--{name.replace('_', '-')} goes without --joint")
    output_weight(options)


def output_weight(options: argparse.Namespace) -> float:
    """λ from --lambda."""
    weight = shared.checked("lambda", options.output_weight, check_output_weight)
    return 1.0 if weight is None else weight


def widths(options: argparse.Namespace) -> range | None:
    """The bits of a --bits such as 1-8, which compares fits; None for one number."""
    first, dash, last = (options.bits or "").partition("-")
    if not (first and dash):
        return None
    ends = [shared.whole("bits", end, f" from 1 to {MAX_BITS}, or two as 1-{MAX_BITS}") for end in (first, last)]
    for end in ends:
        check_bits(end)
    if ends[0] >= ends[1]:
        raise InputError(f"bits must be two numbers, the smaller first, as 1-{MAX_BITS}, got {options.bits!r}")
    return range(ends[0], ends[1] + 1)


def bits(options: argparse.Namespace) -> int:
    """The bits that --bits gives; the option must be there."""
    count = shared.whole("bits", options.bits, f" from 1 to {MAX_BITS}")
    check_bits(count)
    return count


def budget(options: argparse.Namespace) -> float | None:
    """The seconds that --budget gives."""
    return shared.checked("budget", options.budget, check_budget)


def max_error(options: argparse.Namespace) -> float | None:
    """The squared error that --max-error allows."""
    return shared.checked("max-error", options.max_error, check_max_error)


def domain(options: argparse.Namespace) -> tuple[float, float] | None:
    """The two ends that --domain gives."""
    if options.domain is None:
        return None
    lo, hi = (shared.number("domain", end) + 0.0 for end in options.domain)  # + 0.0 makes 0 of -0
    check_domain(lo, hi)
    return lo, hi
