"""The command's options, and checks of them that need no PyTorch."""

import argparse
from collections.abc import Sequence
from typing import Any

from actfit.coefficients import command
from actfit.kernels.errors import KernelError
from actfit.kernels.methods.every_tensor import EveryTensor
from actfit.kernels.methods.registry import DEFAULT, near
from actfit.kernels.names import ACCOUNTINGS, ATTENTION, DTYPES, MODELS, OPTIMIZERS
from actfit.kernels.planning.budget import GOALS
from actfit.kernels.planning.budget import check as check_budget

PROG = "actfit memory"
FORMATS = ("table", "json")
DEFAULT_BITS = 4
WITH_GPU = (*OPTIMIZERS, "none")  # values of --optimizer
LEAST_GPU = 2**20  # bytes
MOST = 2**30  # of any number: a tensor cannot have more than 2^63 elements


def parser() -> command.Parser:
    """The command's parser."""
    parser = command.Parser(prog=PROG, description="What a model keeps for backward, without running it for real.")
    _add_model(parser)
    _add_ways(parser)
    _add_planning(parser)
    _add_gpu(parser)
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


def _add_ways(parser: command.Parser) -> None:
    parser.add_argument(
        "--policy",
        metavar="NAME",
        action="append",
        help="what compress(model, policy=NAME) keeps, as fewbit-3 or invact, or exact; repeatable",
    )
    parser.add_argument(
        "--bits",
        metavar="B",
        action="append",
        help="what compress(model, bits=B) keeps; repeatable (default: exact, invact and 4 bits)",
    )


def _add_planning(parser: command.Parser) -> None:
    parser.add_argument(
        "--budget",
        metavar="SIZE",
        help="in place of these, plan the bits of each saved tensor: bytes at the peak of a step, as 24GiB, or a"
        " share of what is kept now, as 0.2",
    )
    parser.add_argument(
        "--goal",
        metavar="G",
        help="with --budget, what is least, the time of a step or the error of the gradient (default: time)",
    )
    parser.add_argument(
        "--optimizer",
        metavar="O",
        help=f"with --budget in bytes, of a whole training: {', '.join(OPTIMIZERS)}; with --gpu also none"
        f" (its default: {WITH_GPU[0]})",
    )
    parser.add_argument("--compiled", action="store_true", help="with --budget: plan for blocks that Inductor compiles")
    parser.add_argument(
        "--save",
        metavar="FILE",
        help="write the plan, for compress(model, plan=FILE)",
    )


def _add_gpu(parser: command.Parser) -> None:
    parser.add_argument(
        "--gpu",
        metavar="SIZE",
        help="in place of these, whether training fits so much memory, as 24GiB, by each way, and the largest batch",
    )


def check(options: argparse.Namespace) -> None:
    """Raise KernelError for invalid values, but of --policy, whose names need PyTorch."""
    _check_word("format", options.format, FORMATS)
    _check_word("accounting", options.accounting, ACCOUNTINGS)
    _check_word("dtype", options.dtype, DTYPES)
    for name in ("rows", "batch", "seq"):
        whole(name, getattr(options, name))
    ways(options)
    if options.gpu is not None:
        _check_gpu(options)
        return
    if options.budget is not None:
        _check_planned(options)
        return
    for name in ("save", "compiled", "goal", "optimizer"):
        if getattr(options, name) not in (None, False):
            raise KernelError(f"{name} must go with --budget, whose plan it is of, got no budget")


def _check_planned(options: argparse.Namespace) -> None:
    """Raise KernelError for an invalid budget, and for options that exclude it."""
    share = isinstance(check_budget(options.budget), float)
    _check_word("optimizer", options.optimizer, OPTIMIZERS)
    if options.optimizer is not None and share:
        raise KernelError(
            f"optimizer must go with --budget in bytes, as 80GB, got the share {options.budget}; leave it out"
        )
    _check_word("goal", options.goal, GOALS)
    for name in ("policy", "bits"):
        if getattr(options, name) is not None:
            got = ", ".join(getattr(options, name))
            raise KernelError(f"{name} must be left out with --budget, which decides it, got {got!r}")
    if options.accounting == "cuda":
        raise KernelError("accounting must be as-run with --budget, whose plan counts so, got 'cuda'")


def _check_word(name: str, value: str | None, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        raise KernelError(f"{name} must be one of {', '.join(known)}, got {value!r}{near(value, known)}")


def _check_gpu(options: argparse.Namespace) -> None:
    """Raise KernelError for an invalid size of a GPU, and for options that exclude it."""
    try:
        given = check_budget(options.gpu)
    except KernelError:
        given = 0
    if given < LEAST_GPU:  # 24 is forgotten units
        raise KernelError(f"gpu must be the bytes of its memory, as 24GiB, got {options.gpu!r}")
    _check_word("optimizer", options.optimizer, WITH_GPU)
    for name in ("policy", "bits", "budget", "goal", "compiled", "save", "accounting", "peak", "plot"):
        if getattr(options, name) not in (None, False):
            raise KernelError(
                f"{name} must be left out with --gpu, which shows the usual ways; ask for it without --gpu"
            )


def ways(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The arguments of `compress` for each row, each once."""
    if options.policy is None and options.bits is None:
        return [{}, {"policy": DEFAULT}, {"bits": DEFAULT_BITS}]
    least, most = min(EveryTensor.widths), max(EveryTensor.widths)
    named = [{} if name == "exact" else {"policy": name} for name in dict.fromkeys(options.policy or ())]
    return named + [{"bits": bits} for bits in dict.fromkeys(whole("bits", b, least, most) for b in options.bits or ())]


def whole(name: str, text: str | None, least: int = 1, most: int = MOST) -> int | None:
    """A whole number in ASCII digits; None for none."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(MOST)) or not least <= int(text) <= most:
        raise KernelError(f"{name} must be a whole number from {least} to {most}, got {text!r}")
    return int(text)
