"""The command's options, and the checks of them that need no slow import."""

import argparse
from typing import Any

from actfit.coefficients import command
from actfit.coefficients.functions import names
from actfit.fitting.errors import InputError, check_name
from actfit.fitting.options import named_numbers
from actfit.kernels.errors import KernelError
from actfit.kernels.methods.few_bit import DEFAULT_BITS, MAX_BITS
from actfit.kernels.methods.method import Method
from actfit.kernels.methods.registry import DEFAULT, ELEMENTWISE, make

PROG = "python -m codegen"
COMMANDS = "emit | check | inspect"
METHODS = tuple(ELEMENTWISE)
ALL = "all"  # for --method: everything that the project ships of a function
TARGETS = ("triton", "torch")
DTYPES = ("bfloat16", "float16", "float32")
ARCHS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}  # -> Triton's backend, its name there, threads a warp


def parser() -> command.Parser:
    """The parser of the command line."""
    main = command.Parser(prog=PROG, description="Triton kernels, and their plain-PyTorch twins, from expressions.")
    commands = main.add_subparsers(dest="command", required=True, metavar=COMMANDS)
    emit = commands.add_parser("emit", prog="actfit emit", help="print one module, or write all that the project ships")
    emit.add_argument("--fn", metavar="NAME", help=f"one of {', '.join(names())}")
    emit.add_argument("--expr", metavar="TEXT", help='your own f, as in "x*tanh(log(1+exp(x)))"')
    emit.add_argument("--name", metavar="NAME", help="what to call it (default: custom)")
    emit.add_argument("--param", metavar="NAME=VALUE", action="append", default=[], help="set a parameter; repeatable")
    emit.add_argument(
        "--method", metavar="M", default=DEFAULT, help=f"{', '.join(METHODS)} (default: {DEFAULT}), or all, as shipped"
    )
    emit.add_argument(
        "--bits",
        metavar="B",
        help=f"with fewbit: which table (default: {DEFAULT_BITS}); with invact: beside the output, 1 (default) or 2",
    )
    emit.add_argument("--dtype", metavar="D", help=f"{', '.join(DTYPES)} (default: bfloat16)")
    emit.add_argument("--coefficients", metavar="FILE", help="a fit of your own instead of the packaged ones")
    emit.add_argument("--target", metavar="T", default=TARGETS[0], help=f"{', '.join(TARGETS)} (default: {TARGETS[0]})")
    emit.add_argument("-o", "--out", metavar="PATH", help="file to write (default: print)")
    emit.add_argument("--all", action="store_true", help="in a checkout: write all of kernels/generated anew")
    commands.add_parser("check", help="emit everything again and compare, byte for byte")
    inspect = commands.add_parser(
        "inspect", prog="actfit inspect", help="compile without a GPU: instructions, registers, what bounds a kernel"
    )
    inspect.add_argument("--fn", metavar="NAME", help=f"one of {', '.join(names())}")
    inspect.add_argument("--method", metavar="M", default=DEFAULT, help=f"{', '.join(METHODS)} (default: {DEFAULT})")
    inspect.add_argument("--bits", metavar="B", help=f"with fewbit (default: {DEFAULT_BITS}) or invact (1)")
    inspect.add_argument("--dtype", metavar="D", default="bfloat16", help=f"{', '.join(DTYPES)} (default: bfloat16)")
    inspect.add_argument("--arch", metavar="A", default="sm_90", help=f"{', '.join(ARCHS)} (default: sm_90)")
    return main


def check(options: argparse.Namespace) -> None:
    """Raise `InputError` for invalid values, and for options that need or exclude each other."""
    if options.command not in ("emit", "inspect"):
        return
    if options.command == "emit" and options.all:
        _check_alone(options)
        return
    if options.fn is not None:
        check_name(options.fn)
    if options.command == "inspect" and options.fn is None:
        raise InputError("say what to inspect by --fn, as in: inspect --fn gelu --method fewbit --bits 3; got none")
    if options.command == "emit":
        if options.target not in TARGETS:
            raise InputError(f"target must be one of {', '.join(TARGETS)}, got {options.target!r}")
        if (options.fn is None) == (options.expr is None):
            got = "none; as in: emit --fn silu" if options.fn is None else "both"
            raise InputError(f"say what to emit by one of --fn and --expr (or --all), got {got}")
        if options.name is not None and options.expr is None:
            raise InputError("--name goes with --expr")
        named_numbers("param", options.param)
    width = None if options.bits is None else bits(options.bits)
    if options.command == "inspect" or options.method != ALL:
        method(options.method, width)


def _check_alone(options: argparse.Namespace) -> None:
    usual: dict[str, Any] = {"param": [], "method": DEFAULT, "target": TARGETS[0]}
    usual |= dict.fromkeys(("fn", "expr", "name", "bits", "dtype", "coefficients", "out"))
    given = [name for name, value in usual.items() if getattr(options, name) != value]
    if given:
        raise InputError(f"--all writes what the project ships, and must stand alone, got --{given[0]} too")


def bits(text: str) -> int:
    """The number given by --bits."""
    if text.strip() not in map(str, range(1, MAX_BITS + 1)):
        raise InputError(f"bits must be a whole number from 1 to {MAX_BITS}, got {text.strip()!r}")
    return int(text)


def method(name: str, width: int | None) -> Method:
    """The method given by --method and --bits. Raises `InputError` for an unknown one, or bits it does not take."""
    try:
        return make(name, ELEMENTWISE, bits=width)
    except KernelError as error:
        raise InputError(str(error)) from None
