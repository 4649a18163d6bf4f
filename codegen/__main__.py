"""python -m codegen emit | check | inspect: kernels from expressions and coefficient files."""

from actfit.coefficients import command

if __name__ == "__main__":
    command.exit_on_interrupt()  # before the imports, which take most of the time

from actfit.codegen.options import ALL, bits, check, method, parser
from actfit.coefficients.schema import CoefficientError, Document
from actfit.fitting.errors import InputError

if __name__ == "__main__":
    command.early("codegen", lambda: check(parser().parse_args()), (InputError, CoefficientError))

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from actfit.codegen import generated, standalone
from actfit.codegen.costs import as_table
from actfit.codegen.elements import in_dtype
from actfit.codegen.info import info
from actfit.codegen.inspect import inspect
from actfit.codegen.standalone import Request
from actfit.codegen.subject import Subject, of_catalogue, of_one
from actfit.coefficients.files import WRITING, noted, write_text
from actfit.coefficients.reference import check_numbers
from actfit.coefficients.store import load
from actfit.fitting import options as shared
from actfit.fitting.activations import get
from actfit.fitting.activations.catalogue import ALIASES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises `InputError` for bad input."""
    options = parser().parse_args(arguments)
    check(options)
    match options.command:
        case "emit":
            return _emit(options, list(sys.argv[1:] if arguments is None else arguments))
        case "check":
            return _check()
    return _inspect(options)


def _emit(options: argparse.Namespace, words: list[str]) -> int:
    if options.all:
        return _emit_all()
    out = None if options.out in (None, "-") else command.output_path("out", options.out)
    subject, document = _subject(options)
    if options.method == ALL:
        if subject.parameters != tuple(subject.activation.params) or not subject.files or document is not None:
            raise InputError("--method all must go with --fn alone, as the project ships it")
        if options.dtype is not None or options.bits is not None:
            raise InputError("--method all has all dtypes and bits: leave out --dtype and --bits")
        text = generated.WRITERS[options.target](subject)
    else:
        text = standalone.emit(_request(options, subject, document, words), options.target)
    if out is None:
        print(text, end="")
        return command.GOOD
    if command.is_device(out):
        with noted(WRITING):
            out.write_text(text, encoding="utf-8")
    else:
        write_text(out.resolve(), text)  # a link stays; its target is written
        print(f"wrote {out}")
    return command.GOOD


def _subject(options: argparse.Namespace) -> tuple[Subject, Document | None]:
    """The function given by --fn, --expr and --param, and the document given by --coefficients."""
    given = shared.named_numbers("param", options.param)
    path = None if options.coefficients is None else Path(options.coefficients)
    if path is not None and not path.is_file():
        raise InputError(f"coefficients must be a file, got {options.coefficients!r}")
    document = None if path is None else load(path)
    if document is not None:
        check_numbers(document)
    if options.fn is not None:
        name = ALIASES.get(options.fn, options.fn)
        if document is not None and not given:
            given = {key: float(value) for key, value in document["function"]["params"].items()}
        activation = get(name, **given)
        if path is None and not given:
            return of_catalogue(name), None
        return of_one(activation, path), document
    return of_one(shared.own(options.expr, options.name, given), path), document


def _request(options: argparse.Namespace, subject: Subject, document: Document | None, words: list[str]) -> Request:
    dtype, width = options.dtype or "bfloat16", None if options.bits is None else bits(options.bits)
    if document is not None:
        stated = document["options"]
        width = stated.get("bits") if width is None else width
        dtype = stated.get("dtype", dtype) if options.dtype is None else dtype
    made = method(options.method, width)
    if document is None and (reason := made.refusal(info(subject))):
        raise InputError(reason)
    if document is not None and made.fit != document["method"]:
        raise InputError(f"method must fit the coefficients, which are of {document['method']}, got {made.name}")
    out = ("-o", "--o", "--ou", "--out")
    pairs = pairwise(["", *words])
    shown = [word for before, word in pairs if before not in out and word.partition("=")[0] not in out]
    return Request(in_dtype(subject, dtype), made, dtype, ("actfit", *shown))


def _emit_all() -> int:
    if not generated.in_checkout():
        raise InputError(
            f"--all writes the kernels of a checkout of actfit, and must be run in one, got {generated.FOLDER}; for one"
            " function: --fn NAME --method all --out FILE"
        )
    generated.FOLDER.mkdir(exist_ok=True)
    changed, emitted = 0, []
    for path, text in generated.texts():
        emitted.append(path)
        if generated.problem(path, text):
            write_text(path, text)
            changed += 1
    for path in generated.strangers(emitted):
        print(f"{path} is not an emitted file; delete it")
    print(f"{changed} files written below {generated.FOLDER}")
    return command.GOOD


def _check() -> int:
    texts = dict(generated.texts())
    bad = [f"{path}: {fault}" for path, text in texts.items() if (fault := generated.problem(path, text))]
    bad += [f"{path}: no function of the catalogue emits this file" for path in generated.strangers(texts)]
    for line in bad:
        print(line)
    remedy = "actfit emit --all" if generated.in_checkout() else "install the package again"
    advice = f"; to write them anew: {remedy}" if bad else ""
    print(f"{len(texts)} files, {len(bad)} bad{advice}")
    return command.BAD if bad else command.GOOD


def _inspect(options: argparse.Namespace) -> int:
    width = None if options.bits is None else bits(options.bits)
    name = ALIASES.get(options.fn, options.fn)
    print(as_table(inspect(name, method(options.method, width), options.dtype, options.arch)))
    return command.GOOD


def run(arguments: Sequence[str] | None = None) -> int:
    """main as a command: its exit status, whatever happens."""
    return command.run("codegen", lambda: main(arguments), (InputError, CoefficientError))


if __name__ == "__main__":
    sys.exit(run())
