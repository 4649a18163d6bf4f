"""Options that the commands of this package share, and how their texts become values."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from coefficients import command
from coefficients.document import dumps, seal
from coefficients.schema import Document
from coefficients.store import Published, write
from fitting.activations import Activation, from_expression, get, names
from fitting.activations.catalogue import ALIASES
from fitting.errors import InputError
from fitting.provenance import DEFAULT_ROOT


def add_function(parser: argparse.ArgumentParser, everything: str) -> None:
    """--fn, --expr, --name, --param, --all; `everything` is the help of --all."""
    what = parser.add_argument_group("what to fit")
    what.add_argument("--fn", metavar="NAME", help=f"one of {', '.join(names())}")
    what.add_argument("--expr", metavar="TEXT", help='your own f, as in "x*tanh(log(1+exp(x)))"')
    what.add_argument("--name", metavar="NAME", help="what to call it (default: custom)")
    what.add_argument(
        "--param", metavar="NAME=VALUE", action="append", default=[], help="set a parameter of f; repeatable"
    )
    what.add_argument("--all", action="store_true", help=everything)


def check_function(options: argparse.Namespace) -> None:
    """Raise `InputError` unless just one of --fn, --expr and --all is there."""
    chosen = [name for name in ("fn", "expr", "all") if getattr(options, name) not in (None, False)]
    if len(chosen) != 1:
        got = " and ".join(f"--{name}" for name in chosen) or "none"
        raise InputError(f"say what to fit by one of --fn, --expr and --all, got {got}")
    if options.name is not None and options.expr is None:
        raise InputError("--name goes with --expr")


def add_output(parser: argparse.ArgumentParser, formats: Sequence[str], plot: str) -> argparse._ArgumentGroup:
    """--out, --format, --plot, --quiet; `plot` is the help of --plot. The group, for more of its kind."""
    where = parser.add_argument_group("output")
    where.add_argument(
        "--out", metavar="PATH", help=f"file to write, - for stdout (default: one below {DEFAULT_ROOT} in this folder)"
    )
    where.add_argument(
        "--format", metavar="F", default="table", help=f"what is printed: {', '.join(formats)} (default: table)"
    )
    where.add_argument("--plot", metavar="FILE", help=plot)
    where.add_argument("--quiet", action="store_true", help="print nothing")
    return where


def add_workers(parser: argparse.ArgumentParser) -> None:
    """--jobs, --scheduler."""
    many = parser.add_argument_group("with --all")
    many.add_argument("--jobs", metavar="N", help="worker processes; -1 for one a core (default: 1)")
    many.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler to do the work instead")


def check_output(options: argparse.Namespace, formats: Sequence[str]) -> None:
    """Raise `InputError` for an unknown --format, and one that --out - has no use for."""
    if options.format not in formats:
        raise InputError(f"format must be one of {', '.join(formats)}, got {options.format!r}")
    if options.out == "-" and options.format in ("csv", "latex"):
        raise InputError(f"--out - prints the JSON file; leave it out to print {options.format}")


def check_alone(options: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise `InputError` for options that make sense for one function only, where --all is there."""
    for name in names:
        if getattr(options, name) not in (None, [], False):
            raise InputError(f"--{name.replace('_', '-')} goes with one function, not with --all")
    if options.format != "table":
        raise InputError("--format goes with one function, not with --all")


def check_workers(options: argparse.Namespace) -> None:
    """Raise `InputError` unless --jobs or --scheduler, if any, stands beside --all."""
    if options.all and options.jobs is not None and options.scheduler is not None:
        raise InputError("say who does the work by one of --jobs and --scheduler")
    if not options.all and (options.jobs is not None or options.scheduler is not None):
        raise InputError("--jobs and --scheduler go with --all")


def activation(options: argparse.Namespace) -> Activation:
    """What --fn or --expr and --param say."""
    params: dict[str, float] = {}
    for text in options.param:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or key in params:
            raise InputError(f"param must be NAME=VALUE, each name once, got {text!r}")
        params[key] = number(f"param {key}", value)
    if options.fn is not None:
        return get(options.fn, **params)
    name = "custom" if options.name is None else options.name
    if name in names() or name in ALIASES:
        raise InputError(f"name must not be one of the catalogue's, got {name!r}; see --fn")
    if name.startswith("_"):  # as a folder's name it would not do
        raise InputError(f"name must begin with a letter, got {name!r}")
    if len(name) > 64:
        raise InputError(f"name must have at most 64 characters, got {len(name)}")
    return from_expression(options.expr, name, params)


def number(what: str, text: str) -> float:
    """A float64."""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{what} must be a number, got {text.strip()!r}") from None


def whole(what: str, text: str, rule: str = "") -> int:
    """An integer."""
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{what} must be a whole number{rule}, got {text.strip()!r}") from None


def jobs(text: str | None) -> int:
    """Worker processes: at least 1, or -1 for one a core."""
    count = 1 if text is None else whole("jobs", text)
    if count == 0 or count < -1:
        raise InputError(f"jobs must be at least 1, or -1 for one a core, got {count}")
    return count


def deliver(fit: Document, out: Path | None, publish: Callable[[], Published]) -> tuple[str, str]:
    """Write a fit's document to `out`, or publish it where there is none; its text, and a line that says where."""
    if out is None:
        published = publish()
        text = published.path.read_text(encoding="ascii")
        return text, f"{'wrote' if published.written else 'found the same in'} {published.path}"
    sealed = seal(fit, 1)
    if command.is_device(out):
        out.write_text(dumps(sealed), encoding="ascii")
    else:
        write(sealed, out.resolve())  # a link stays, and what it points to is written
    return dumps(sealed), f"wrote {out}"
