"""Options that the commands of this package share, and how their texts become values.

Imports no numerical library: a command checks its options before it imports its libraries.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from actfit.coefficients import command
from actfit.coefficients.document import dumps, seal
from actfit.coefficients.files import WRITING, noted
from actfit.coefficients.functions import ALIASES, names
from actfit.coefficients.schema import Document
from actfit.coefficients.store import DATA, Published, publish, unchanged_version, write
from actfit.fitting.errors import InputError, check_name

if TYPE_CHECKING:
    from actfit.fitting.activations import Activation

LONGEST = 60  # characters of a wrong value that an error quotes


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
    """Raise `InputError` unless exactly one of --fn, --expr and --all is given."""
    given = [name for name in ("fn", "expr", "all") if getattr(options, name) not in (None, False)]
    if len(given) != 1:
        got = " and ".join(f"--{name}" for name in given) or "none"
        raise InputError(f"say what to fit by one of --fn, --expr and --all, got {got}")
    if options.name is not None and options.expr is None:
        raise InputError("--name goes with --expr")
    if options.fn is not None:
        check_name(options.fn)


def add_output(parser: argparse.ArgumentParser, formats: Sequence[str], plot: str) -> argparse._ArgumentGroup:
    """--out, --format, --plot, --quiet; `plot` is the help of --plot. The group, for more of its kind."""
    where = parser.add_argument_group("output")
    where.add_argument(
        "--out",
        metavar="PATH",
        help="file to write, - for stdout (default: one of the user's data, unless it is shipped)",
    )
    where.add_argument("--root", metavar="DIR", help="write below this folder, as FUNCTION/NAME.vVERSION.json")
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
    """Raise `InputError` for an unknown --format, or one that does not go with --out -."""
    if options.format not in formats:
        raise InputError(f"format must be one of {', '.join(formats)}, got {options.format!r}")
    if options.root is not None and options.out is not None:
        raise InputError("say where to write by one of --root and --out")
    if options.root is not None and (
        not options.root or (Path(options.root).exists() and not Path(options.root).is_dir())
    ):
        raise InputError(f"root must be a folder, got {options.root!r}")
    if options.out == "-" and options.format in ("csv", "latex"):
        raise InputError(f"--out - prints the JSON file; leave it out to print {options.format}")


def check_alone(options: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise `InputError` for options that make no sense with --all."""
    for name in names:
        if getattr(options, name) not in (None, [], False):
            raise InputError(f"--{name.replace('_', '-')} goes with one function, not with --all")
    if options.format != "table":
        raise InputError("--format goes with one function, not with --all")


def check_workers(options: argparse.Namespace) -> None:
    """Raise `InputError` for --jobs or --scheduler without --all, and for both."""
    if options.all and options.jobs is not None and options.scheduler is not None:
        raise InputError("say who does the work by one of --jobs and --scheduler")
    if not options.all and (options.jobs is not None or options.scheduler is not None):
        raise InputError("--jobs and --scheduler go with --all")


def activation(options: argparse.Namespace) -> "Activation":
    """The activation of --fn or --expr, with the parameters of --param."""
    from actfit.fitting.activations import get  # here, as sympy takes most of a second

    params = named_numbers("param", options.param)
    return own(options.expr, options.name, params) if options.fn is None else get(options.fn, **params)


def own(expr: str, name: str | None, params: Mapping[str, float]) -> "Activation":
    """The activation of --expr and --name."""
    from actfit.fitting.activations import from_expression  # here, for the same reason

    name = "custom" if name is None else name
    if name in names() or name in ALIASES:
        raise InputError(f"name must not be one of the catalogue's, got {name!r}; see --fn")
    if name.startswith("_"):  # as a folder's name it would not do
        raise InputError(f"name must begin with a letter, got {name!r}")
    if len(name) > 64:
        raise InputError(f"name must have at most 64 characters, got {len(name)}")
    return from_expression(expr, name, params)


def named_numbers(what: str, texts: Sequence[str]) -> dict[str, float]:
    """The numbers of an option NAME=VALUE that may be repeated, by name."""
    values: dict[str, float] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or key in values:
            raise InputError(f"{what} must be NAME=VALUE, each name once, got {text!r}")
        values[key] = number(f"{what} {key}", value)
    return values


def is_plain(text: str) -> bool:
    """Whether `text` is ASCII without underscores: Python would also read other scripts' digits, and 1_000."""
    return text.isascii() and "_" not in text


def number(what: str, text: str) -> float:
    """A float64, from ASCII text."""
    try:
        if is_plain(text):
            return float(text)
    except ValueError:
        pass
    raise InputError(f"{what} must be a number, got {_shown(text)}")


def whole(what: str, text: str, rule: str = "") -> int:
    """An integer, from ASCII text."""
    try:
        if is_plain(text):
            return int(text)
    except ValueError:
        pass
    raise InputError(f"{what} must be a whole number{rule}, got {_shown(text)}")


def _shown(text: str) -> str:
    """`text` for an error: quoted, shortened, and with a hint if it looks like a number."""
    word = text.strip()
    quoted = repr(word) if len(word) <= LONGEST else f"{word[:LONGEST]!r}..."
    unlike = any(letter.isdigit() for letter in word) and not is_plain(word)
    return quoted + "; write it in the digits 0 to 9" * unlike


def checked(what: str, text: str | None, check: Callable[[float], None]) -> float | None:
    """The number of an optional option; `check` raises `InputError` for a number that breaks its rule."""
    if text is None:
        return None
    value = number(what, text)
    check(value)
    return value


def jobs(text: str | None) -> int:
    """Worker processes: at least 1, or -1 for one a core."""
    count = 1 if text is None else whole("jobs", text)
    if count == 0 or count < -1:
        raise InputError(f"jobs must be at least 1, or -1 for one a core, got {count}")
    return count


def deliver(fit: Document, name: str, out: Path | None, root: str | None) -> tuple[str, str]:
    """Write a fit's document to `out`, or store it if `out` is None. Returns its text, and a line with its path."""
    if out is None:
        published = stored(fit, name, root)
        text = published.path.read_text(encoding="ascii")
        return text, f"{'wrote' if published.written else 'found the same in'} {published.path}"
    sealed = seal(fit, 1)
    with noted(WRITING):
        if command.is_device(out):
            out.write_text(dumps(sealed), encoding="ascii")
        else:
            write(sealed, out.resolve())  # a link stays a link; its target is written
    return dumps(sealed), f"wrote {out}"


def stored(fit: Document, name: str, root: str | None) -> Published:
    """Publish a fit below `root`; if `root` is None, in the user's data, unless a packaged file is the same.

    The path is relative to the current folder for a packaged file inside it, and absolute otherwise.
    """
    here = Path.cwd()
    if root is None:
        same = unchanged_version(fit, name, DATA)
        if same is not None:
            return Published(same.relative_to(here) if same.is_relative_to(here) else same, written=False)
    return publish(fit, name, user_root() if root is None else Path(root).absolute())


def user_root() -> Path:
    """The folder of a user's own fits."""
    from platformdirs import user_data_path  # here, as few runs write

    return user_data_path("actfit", appauthor=False) / "coefficients"
