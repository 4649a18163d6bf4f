"""actfit check [FILE…] | list [FUNCTION]: verify coefficient files, or show them."""

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from actfit.coefficients import command, store
from actfit.coefficients.command import BAD, GOOD, MISUSED, Misuse, Parser, say
from actfit.coefficients.document import check_hash, read_unsealed
from actfit.coefficients.listing import COLUMNS, aligned, row
from actfit.coefficients.reference import check_numbers
from actfit.coefficients.schema import CoefficientError, Document

# Modules that read expressions: read(document) -> problems; that recompute the numbers of a method's files:
# verify(document, weights) -> (problems, what could not be verified); that prove its bounds again, and report progress:
# prove(document, report) -> (problems, what could not be proven); and that read a weight: parse_weight(text). They are
# in packages above this one and need numpy and sympy, so they are imported when needed, and only here.
READER: Final = "actfit.fitting.stored"
WEIGHTS: Final = "actfit.fitting.weights"
JUDGES: Final = {
    "fewbit": "actfit.fitting.fewbit.verify",
    "joint": "actfit.fitting.joint.verify",
    "invact": "actfit.fitting.invact.verify",
}
PROVERS: Final = {"fewbit": "actfit.fitting.fewbit.prove", "joint": "actfit.fitting.joint.prove"}
Verdict = tuple[list[str], list[str]]
WIDTH = 60  # characters of a proof's progress on a terminal


class _Judges:
    """Reads, recomputes and proves files as far as the packages for it are installed; says once what is missing."""

    def __init__(self, recompute: bool, prove: bool, weights: Sequence[str] = ()) -> None:
        self._recompute, self._prove = recompute, prove
        self._modules: dict[str, ModuleType | None] = {}
        self._weights = [_weight(text) for text in weights]
        self._labels: set[str] = set()  # of the files' weights
        self.proven = 0  # files

    @property
    def unused(self) -> list[str]:
        """Labels of weights that no file has."""
        return [weight.label for weight in self._weights if weight.label not in self._labels]

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
        self._labels.add(document["options"]["weight"])
        verdict: Verdict = judge.verify(document, self._weights) if judge else ([], [])
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


def _weight(text: str) -> Any:
    """The weight that --weight names."""
    try:
        return importlib.import_module(WEIGHTS).parse_weight(text)
    except (ImportError, ValueError) as error:  # fitting's InputError is a ValueError
        raise Misuse(f"weight must be a file of samples that can be read, got {text!r}: {error}") from None


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


def _existing(files: Sequence[Path]) -> list[Path]:
    """Those that are files; says which are not."""
    existing = [path for path in files if path.is_file()]
    for path in files:
        if path not in existing:
            say("coefficients", f"{path} is not a file" if path.exists() else f"{path} does not exist")
    return existing


def _check(files: Sequence[Path], root: Path, judges: _Judges, prove: bool) -> int:
    paths = _existing(files) if files else _all(root)
    if not paths:
        return MISUSED
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
    for label in judges.unused:
        say("coefficients", f"weight must be that of a file that is checked, got {label}, which none has")
    if judges.unused or len(paths) < len(files):
        return MISUSED
    return BAD if bad else GOOD


def _list(function: str | None, root: Path) -> int:
    _all(root)
    try:
        entries = store.available(root) if function is None else store.find_function(function, root)
    except CoefficientError as error:
        raise Misuse(str(error)) from None
    tables = {method: [columns] for method, columns in COLUMNS.items()}
    status = GOOD
    for entry in entries:
        try:
            document = _read(entry.path)
            check_hash(document)
            tables[document["method"]].append(row(entry, document))
        except CoefficientError as error:
            say("coefficients", str(error) if str(entry.path) in str(error) else f"{entry.path}: {error}")
            status = BAD
    shown = [rows for rows in tables.values() if len(rows) > 1] or [tables["fewbit"]]
    print("\n\n".join(map(aligned, shown)))
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; wrong arguments raise SystemExit(2), as argparse does."""
    parser = Parser(prog="python -m coefficients", description="Verify or show coefficient files.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="check | list")
    check = commands.add_parser("check", prog="actfit check", help="verify shape, hash, meaning and errors")
    check.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: all packaged files")
    check.add_argument("--no-recompute", action="store_true", help="trust the errors that the files state")
    check.add_argument(
        "--prove",
        action="store_true",
        help="and prove each few-bit and joint bound again, in ball arithmetic, from the file alone",
    )
    check.add_argument(
        "--weight",
        metavar="SAMPLES",
        action="append",
        default=[],
        help="the samples of a fit, which its file holds by their hash only (.npy, .npz or text); repeatable",
    )
    show = commands.add_parser("list", prog="actfit list", help="show the packaged files")
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
        if options.weight and options.no_recompute:
            raise Misuse("--weight goes without --no-recompute, which computes no errors; got both")
        judges = _Judges(not options.no_recompute, options.prove, options.weight)
        return _check(options.files, root, judges, options.prove)
    return _list(options.function, root)


def run(arguments: Sequence[str] | None = None) -> int:
    """main as a command: its exit status, whatever happens."""
    return command.run("coefficients", lambda: main(arguments))


if __name__ == "__main__":
    sys.exit(run())
