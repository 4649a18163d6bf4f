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


# By name: what the value is called, "" for none, and help.
OPTIONS = {
    "model": ("NAME", f"one of {', '.join(MODELS)}; or module:function that gives model and inputs"),
    "batch": ("N", "examples (default: 1; mlp and block: 2)"),
    "seq": ("N", "tokens of each (default: as many as the model takes)"),
    "dtype": ("D", f"{', '.join(DTYPES)} (default: the model's usual one)"),
    "attention": ("A", f"{', '.join(ATTENTION)} (default: sdpa, torch's fused one)"),
    "act": ("NAME", "another activation, by the name that the model's library has"),
    "policy": ("NAME", "what compress(model, policy=NAME) keeps, as fewbit-3 or invact, or exact; repeatable"),
    "bits": ("B", "what compress(model, bits=B) keeps; repeatable (default: exact, invact and 4 bits)"),
    "budget": (
        "SIZE",
        "in place of these, plan the bits of each saved tensor: bytes at the peak of a step, as 24GiB, or a share of"
        " what is kept now, as 0.2",
    ),
    "goal": ("G", "with --budget, what is least, the time of a step or the error of the gradient (default: time)"),
    "optimizer": (
        "O",
        f"with --budget in bytes, of a whole training: {', '.join(OPTIMIZERS)}; with --gpu also none (its default:"
        f" {WITH_GPU[0]})",
    ),
    "compiled": ("", "with --budget: plan for blocks that Inductor compiles"),
    "save": ("FILE", "write the plan, for compress(model, plan=FILE)"),
    "gpu": (
        "SIZE",
        "in place of these, whether training fits so much memory, as 24GiB, by each way, and the largest batch",
    ),
    "accounting": ("A", "cuda: what CUDA keeps; as-run: what the CPU does (default: cuda; with --budget: as-run)"),
    "peak": ("", "count the most bytes that are alive in forward and backward, too"),
    "format": ("F", f"{', '.join(FORMATS)} (default: table)"),
    "rows": ("N", "rows of the per-module table (default: 12)"),
    "plot": ("FILE", "draw who keeps what in the model as it is; with --budget bytes against error"),
}
DEFAULTS = {"attention": "sdpa", "format": "table", "rows": "12"}


def parser() -> command.Parser:
    """The command's parser."""
    parser = command.Parser(prog=PROG, description="What a model keeps for backward, without running it for real.")
    for name, (value, text) in OPTIONS.items():
        action = "append" if name in ("policy", "bits") else "store"
        given: dict[str, Any] = {"metavar": value, "action": action, "required": name == "model"}
        parser.add_argument(f"--{name}", help=text, **given if value else {"action": "store_true"})
    parser.set_defaults(**DEFAULTS)
    return parser


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
    _refuse(options, ("save", "compiled", "goal", "optimizer"), "go with --budget, whose plan it is of, got no budget")


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


def _refuse(options: argparse.Namespace, names: Sequence[str], rule: str) -> None:
    """Raise KernelError for the first of these options that is given."""
    for name in names:
        if getattr(options, name) not in (None, False):
            raise KernelError(f"{name} must {rule}")


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
    others = ("policy", "bits", "budget", "goal", "compiled", "save", "accounting", "peak", "plot")
    _refuse(options, others, "be left out with --gpu, which shows the usual ways; ask for it without --gpu")


def ways(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The arguments of `compress` for each row, by its name."""
    if options.policy is None and options.bits is None:
        return {"exact": {}, DEFAULT: {"policy": DEFAULT}, f"{DEFAULT_BITS} bits": {"bits": DEFAULT_BITS}}
    widths = [whole("bits", text, min(EveryTensor.widths), max(EveryTensor.widths)) for text in options.bits or ()]
    named = {name: {} if name == "exact" else {"policy": name} for name in options.policy or ()}
    return named | {f"{bits} bits": {"bits": bits} for bits in widths}


def whole(name: str, text: str | None, least: int = 1, most: int = MOST) -> int | None:
    """A whole number in ASCII digits; None for none."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(MOST)) or not least <= int(text) <= most:
        raise KernelError(f"{name} must be a whole number from {least} to {most}, got {text!r}")
    return int(text)
