"""python -m coefficients check [FILE…] | list [FUNCTION]: verify coefficient files, or show them."""

import importlib
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Final

from coefficients import command, store
from coefficients.command import BAD, GOOD, Misuse, Parser, say
from coefficients.document import check_hash, read_unsealed
from coefficients.reference import check_numbers
from coefficients.schema import CoefficientError, Document

# Modules that read expressions: read(document) -> problems; that recompute the numbers of a method's files:
# verify(document) -> (problems, what could not be verified); and that prove its bounds again, and report progress:
# prove(document, report) -> (problems, what could not be proven). They are in packages above this one and need numpy
# and sympy, so they are imported when needed, and only here.
READER: Final = "fitting.stored"
JUDGES: Final = {
    "fewbit": "fitting.fewbit.verify",
    "joint": "fitting.joint.verify",
    "invact": "fitting.invact.verify",
}
PROVERS: Final = {"fewbit": "fitting.fewbit.prove", "joint": "fitting.joint.prove"}
Verdict = tuple[list[str], list[str]]
WIDTH = 60  # characters of a proof's progress on a terminal

COLUMNS: Final = {
    "fewbit": ("function", "name", "version", "bits", "levels", "l2_squared", "linf", "gap"),
    "joint": ("function", "name", "version", "bits", "levels", "derivative_share", "output_share", "total", "gap"),
    "invact": (
        "function",
        "name",
        "version",
        "bits",
        "instructions",
        "rms",
        "floor_rms",
        "linf",
        "floor_linf",
        "bound",
    ),
}


class _Judges:
    """Reads, recomputes and proves files as far as the packages for it are installed; says once what is missing."""

    def __init__(self, recompute: bool, prove: bool) -> None:
        self._recompute, self._prove = recompute, prove
        self._modules: dict[str, ModuleType | None] = {}
        self.proven = 0  # files

    @property
    def missing(self) -> bool:
        return not self._recompute or None in self._modules.values()

    def judge(self, path: Path, report: Callable[[str], None]) -> Verdict:
        """Problems of one file, and what could not be verified. The hash is checked after the other cheap checks.

        `report` is called with texts of what is being done.
        """
        document = _read(path)
        reader = self._module(READER, "expressions of files were not read")
        problems = list(reader.read(document)) if reader else []
        for check in (check_numbers, check_hash):
            try:
                check(document)
            except CoefficientError as error:
                problems.append(str(error))
        if problems or not self._recompute:
            return problems, []
        method = document["method"]
        judge = self._module(JUDGES[method], f"errors of {method} files were not recomputed")
        verdict: Verdict = judge.verify(document) if judge else ([], [])
        if not self._prove or method not in PROVERS or verdict[0]:
            return verdict
        prover = self._module(PROVERS[method], f"bounds of {method} files were not proven")
        if prover is None:
            return verdict
        problems, unproven = prover.prove(document, report)
        self.proven += not (problems or unproven)
        return problems, [*verdict[1], *unproven]

    def _module(self, name: str, otherwise: str) -> ModuleType | None:
        if name not in self._modules:
            try:
                self._modules[name] = importlib.import_module(name)
            except ImportError as error:
                if self._recompute:
                    say("coefficients", f"{otherwise}: {error}")
                self._modules[name] = None
        return self._modules[name]


def _all(root: Path) -> list[Path]:
    # Not store.available, which passes over files with a wrong name.
    if not root.is_dir():
        raise Misuse(f"root must be a folder of coefficient files, got {str(root)!r}")
    paths = sorted(root.rglob("*.json"))
    if not paths:
        raise Misuse(f"no coefficient files in {root}")
    here = Path.cwd()
    return [path.relative_to(here) if path.is_relative_to(here) else path for path in paths]


def _read(path: Path) -> Document:
    try:
        return read_unsealed(path)
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror}") from None


def _show(place: str, text: str = "") -> None:
    """A line on a terminal, which the next line overwrites."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"{place}{text}", end="\r", file=sys.stderr, flush=True)


def _show_proof(place: str, text: str) -> None:
    _show(place, f" {text:<{WIDTH}}")


def _check(files: Sequence[Path], root: Path, recompute: bool, prove: bool) -> int:
    for path in files:
        if not path.is_file():
            raise Misuse(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    paths = files or _all(root)
    judges = _Judges(recompute, prove)
    bad = partly = 0
    for i, path in enumerate(paths, start=1):
        place = f"{i}/{len(paths)}"
        _show(place)
        try:
            problems, unverified = judges.judge(path, partial(_show_proof, place))
            problems = [f"{path}: {line}" for line in problems]
        except CoefficientError as error:
            problems, unverified = [str(error)], []
        if prove:
            _show_proof(" " * len(place), "")
        rest = f"; not verified: {', '.join(unverified)}" if unverified else ""
        print("; ".join(problems) or f"{path}: ok{rest}", flush=True)
        bad += bool(problems)
        partly += bool(unverified and not problems)
    note = " (errors not recomputed)" if judges.missing else f", {partly} verified in part" if partly else ""
    note = f", {judges.proven} bound{'s' * (judges.proven != 1)} proven" * prove + note
    print(f"{len(paths)} file{'s' if len(paths) > 1 else ''}, {bad} bad{note}")
    return BAD if bad else GOOD


def _list(function: str | None, root: Path) -> int:
    _all(root)
    try:
        entries = store.find_function(function, root) if function else store.available(root)
    except CoefficientError as error:
        raise Misuse(str(error)) from None
    tables = {method: [columns] for method, columns in COLUMNS.items()}
    status = GOOD
    for entry in entries:
        try:
            document = _read(entry.path)
            check_hash(document)
            tables[document["method"]].append(_row(entry, document))
        except CoefficientError as error:
            say("coefficients", str(error) if str(entry.path) in str(error) else f"{entry.path}: {error}")
            status = BAD
    shown = [rows for rows in tables.values() if len(rows) > 1] or [tables["fewbit"]]
    print("\n\n".join(map(_aligned, shown)))
    return status


def _aligned(rows: list[tuple[str, ...]]) -> str:
    """Lines of columns: the first two are names, the others numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = "<<" + ">" * len(widths)
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=False))
        for row in rows
    )


def _row(entry: store.Entry, document: Document) -> tuple[str, ...]:
    solution, error = document["solution"], document["error"]
    if document["method"] == "invact":
        bits, count = len(solution["branches"]) - 1, solution["price"]["instructions"]
        bounds = [math.inf if bound is None else float(bound) for bound in error["bound"]]  # null: none was found
        errors = [*(float(error[key]) for key in COLUMNS["invact"][5:-1]), max(bounds)]
    else:
        levels = solution["levels" if document["method"] == "fewbit" else "derivatives"]
        bits, count = document["options"]["bits"], len(levels)
        errors = [float(error[key]) for key in COLUMNS[document["method"]][5:]]
    counts = (entry.version, bits, count)
    return (entry.function, entry.name, *map(str, counts), *(f"{value:.4g}" for value in errors))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; wrong arguments raise SystemExit(2), as argparse does."""
    parser = Parser(prog="python -m coefficients", description="Verify or show coefficient files.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="check | list")
    check = commands.add_parser("check", help="verify shape, hash, meaning and errors")
    check.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: all packaged files")
    check.add_argument("--no-recompute", action="store_true", help="trust the errors that the files state")
    check.add_argument(
        "--prove",
        action="store_true",
        help="and prove each few-bit and joint bound again, in ball arithmetic, from the file alone",
    )
    show = commands.add_parser("list", help="show the packaged files")
    show.add_argument("function", nargs="?", metavar="FUNCTION", help="default: all functions")
    for subparser in (check, show):
        subparser.add_argument(
            "--root", metavar="DIR", help="other files than the packaged ones, such as fits of your own"
        )
    options = parser.parse_args(arguments)
    root = store.DATA if options.root is None else Path(options.root)
    if options.command == "check":
        if options.files and options.root is not None:
            raise Misuse("say what to check by FILE or by --root, got both")
        if options.prove and options.no_recompute:
            raise Misuse("--prove recomputes, and goes without --no-recompute; got both")
        return _check(options.files, root, not options.no_recompute, options.prove)
    return _list(options.function, root)


def run(arguments: Sequence[str] | None = None) -> int:
    """main as a command: its exit status, whatever happens."""
    return command.run("coefficients", lambda: main(arguments))


if __name__ == "__main__":
    sys.exit(run())
