"""The command's options, and checks of them that need no PyTorch."""

import argparse
import math
from collections.abc import Sequence
from contextlib import suppress

from coefficients import command
from kernels.errors import KernelError
from kernels.methods.compressed import SCHEMES
from kernels.methods.few_bit import DEFAULT_BITS
from kernels.methods.from_output import FromOutput
from kernels.methods.method import Method
from kernels.methods.registry import of_models
from kernels.names import ACCOUNTINGS, ATTENTION, DTYPES, MODELS
from kernels.planning.budget import check as check_budget
from kernels.planning.goals import GOALS

PROG = "python -m kernels.memory"
FORMATS = ("table", "json")
MOST = 2**30  # of any number: a tensor cannot have more than 2^63 elements


def parser() -> command.Parser:
    """The command's parser."""
    parser = command.Parser(prog=PROG, description="What a model keeps for backward, without running it for real.")
    _add_model(parser)
    _add_methods(parser)
    _add_planning(parser)
    parser.add_argument(
        "--accounting",
        metavar="A",
        help="cuda: what CUDA keeps; as-run: what the CPU does (default: cuda; with --budget: as-run)",
    )
    parser.add_argument(
        "--peak", action="store_true", help="count the most bytes that are alive in forward and backward, too"
    )
    parser.add_argument("--format", metavar="F", default="table", help=f"{', '.join(FORMATS)} (default: table)")
    parser.add_argument("--rows", metavar="N", default="12", help="rows of the per-module table (default: 12)")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw who keeps what in the model as it is; with --budget bytes against error"
    )
    return parser


def _add_model(parser: command.Parser) -> None:
    known = ", ".join(MODELS)
    parser.add_argument(
        "--model", metavar="NAME", required=True, help=f"one of {known}; or module:function that gives model and inputs"
    )
    parser.add_argument("--batch", metavar="N", help="examples (default: 1; mlp and block: 2)")
    parser.add_argument("--seq", metavar="N", help="tokens of each (default: as many as the model takes)")
    parser.add_argument("--dtype", metavar="D", help=f"{', '.join(DTYPES)} (default: the model's usual one)")
    parser.add_argument(
        "--attention",
        metavar="A",
        default="sdpa",
        help=f"{', '.join(ATTENTION)} (default: sdpa, torch's fused one)",
    )
    parser.add_argument("--act", metavar="NAME", help="another activation, by the name that the model's library has")


def _add_methods(parser: command.Parser) -> None:
    parser.add_argument(
        "--method",
        metavar="M",
        action="append",
        help=f"{', '.join(of_models())}; repeatable (default: invact, fewbit and auto)",
    )
    parser.add_argument(
        "--bits",
        metavar="B",
        help=f"of fewbit (default: {DEFAULT_BITS}), approx-backprop (8), compress (4) or invact alone (1)",
    )
    parser.add_argument(
        "--scheme", metavar="S", help=f"of approx-backprop, {', '.join(SCHEMES)} (default: {SCHEMES[0]})"
    )
    parser.add_argument(
        "--max-derivative-error",
        "--max-gradient-error",
        metavar="E",
        help="of auto: bound on the error of f' (default: invact's)",
    )


def _add_planning(parser: command.Parser) -> None:
    parser.add_argument(
        "--budget",
        metavar="SIZE",
        help="in place of methods, plan the bits of each saved tensor: bytes at the peak of a step, as 24GiB, or a"
        " share of what is kept now, as 0.2",
    )
    parser.add_argument(
        "--goal",
        metavar="G",
        help="with --budget, error: the least; time: as few elements in codes as it allows (default: error)",
    )
    parser.add_argument(
        "--timed", action="store_true", help="with --budget and a model of your own: measure the time of a step, too"
    )
    parser.add_argument("--compiled", action="store_true", help="with --budget, a share: plan for torch.compile")
    parser.add_argument(
        "--save", metavar="FILE", help="write the plan, for convert(model, plan=FILE) or compression.options(plan=FILE)"
    )


def check(options: argparse.Namespace) -> None:
    """Raise KernelError for invalid values, and for an option that none of the methods takes."""
    for name, value, allowed in (
        ("format", options.format, FORMATS),
        ("accounting", options.accounting, (None, *ACCOUNTINGS)),
        ("dtype", options.dtype, (None, *DTYPES)),
    ):
        if value not in allowed:
            raise KernelError(f"{name} must be one of {', '.join(filter(None, allowed))}, got {value!r}")
    for name in ("rows", "batch", "seq"):
        whole(name, getattr(options, name))
    number("max-derivative-error", options.max_derivative_error)
    if options.budget is None:
        for name in ("save", "compiled", "goal", "timed"):
            if getattr(options, name) not in (None, False):
                raise KernelError(f"{name} must go with --budget, whose plan it is of, got no budget")
    else:
        _check_planned(options)
        return
    methods = asked(options)
    for method in methods:
        if method not in of_models():
            raise KernelError(f"method must be one of {', '.join(of_models())}, got {method!r}")
    _check_goes_with(options, methods)
    bits(options.bits, methods)


def _check_planned(options: argparse.Namespace) -> None:
    """Raise KernelError for an invalid budget, and for options that exclude it."""
    check_budget(options.budget)
    if options.goal not in (None, *GOALS):
        raise KernelError(f"goal must be one of {', '.join(GOALS)}, got {options.goal!r}")
    if options.timed and (options.compiled or options.model in MODELS):
        raise KernelError("timed must go with a model of your own that runs in eager mode, as module:function")
    for name in ("method", "bits", "scheme", "max_derivative_error"):
        value = getattr(options, name)
        if value is not None:
            got = ", ".join(value) if isinstance(value, list) else value
            raise KernelError(f"{name.replace('_', '-')} must be left out with --budget, which decides it, got {got!r}")
    if options.accounting == "cuda":
        raise KernelError("accounting must be as-run with --budget, whose step runs backward too, got 'cuda'")


def asked(options: argparse.Namespace) -> list[str]:
    """The methods, each once."""
    return list(dict.fromkeys(options.method or ("invact", "fewbit", "auto")))


def whole(name: str, text: str | None, least: int = 1, most: int = MOST, of: str = "") -> int | None:
    """A whole number in ASCII digits; None for none."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(MOST)) or not least <= int(text) <= most:
        raise KernelError(f"{name} must be a whole number from {least} to {most}{of}, got {text!r}")
    return int(text)


def with_bits(methods: Sequence[str]) -> list[type[Method]]:
    """The methods that --bits applies to; of invact, whose bits come with the output, only if no other has bits."""
    kinds = [of_models()[name] for name in methods if of_models()[name].widths]
    return [kind for kind in kinds if kind is not FromOutput] or kinds


def bits(text: str | None, methods: Sequence[str]) -> int | None:
    """The value of --bits, in the range that all methods it applies to allow."""
    kinds = with_bits(methods)
    if not kinds:
        return None
    narrow = max(kinds, key=lambda kind: min(kind.widths))
    return whole("bits", text, min(narrow.widths), max(narrow.widths), f" for {narrow.name}")


def number(name: str, text: str | None) -> float | None:
    """A number of 0 or more; None for none."""
    if text is None:
        return None
    with suppress(ValueError):
        if 0 <= command.number(text) < math.inf:
            return command.number(text)
    raise KernelError(f"{name} must be a number of 0 or more, got {text!r}")


def _check_goes_with(options: argparse.Namespace, methods: Sequence[str]) -> None:
    """Raise KernelError for an option that none of the methods takes."""
    for name in ("bits", "scheme", "max_derivative_error"):
        takers = [kind.name for kind in of_models().values() if name in kind.options]
        if getattr(options, name) is not None and not set(takers) & set(methods):
            option = name.replace("_", "-")
            raise KernelError(
                f"{option} must go with --method {' or '.join(takers)}, got --method {', '.join(methods)}"
            )
