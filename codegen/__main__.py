"""python -m codegen emit | check | list | inspect: kernels from expressions and coefficient files."""

from coefficients import command

if __name__ == "__main__":
    command.exit_on_interrupt()  # before the imports, which take most of the time

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from codegen import generated, standalone
from codegen.costs import as_table
from codegen.inspect import ARCHS, inspect
from codegen.standalone import METHODS, TARGETS, Request
from codegen.subject import DTYPES, Subject, of_catalogue, of_one
from coefficients import CoefficientError
from coefficients.schema import Document
from coefficients.store import load, write_text
from fitting.activations import from_expression, get, names
from fitting.activations.catalogue import ALIASES
from fitting.errors import InputError

PROG = "python -m codegen"
COMMANDS = "emit | check | list | inspect"
METHOD = "invact"
DEFAULT_BITS = 3


def _parser() -> command.Parser:
    parser = command.Parser(prog=PROG, description="Triton kernels, and their plain-PyTorch twins, from expressions.")
    commands = parser.add_subparsers(dest="command", required=True, metavar=COMMANDS)
    emit = commands.add_parser("emit", help="print one module, or write all that the project ships")
    emit.add_argument("--fn", metavar="NAME", help=f"one of {', '.join(names())}")
    emit.add_argument("--expr", metavar="TEXT", help='your own f, as in "x*tanh(log(1+exp(x)))"')
    emit.add_argument("--name", metavar="NAME", help="what to call it (default: custom)")
    emit.add_argument("--param", metavar="NAME=VALUE", action="append", default=[], help="set a parameter; repeatable")
    emit.add_argument(
        "--method", metavar="M", default=METHOD, help=f"{', '.join(METHODS)} (default: {METHOD}), or all, as shipped"
    )
    emit.add_argument("--bits", metavar="B", help=f"with fewbit: which table (default: {DEFAULT_BITS})")
    emit.add_argument("--dtype", metavar="D", help=f"{', '.join(DTYPES)} (default: bfloat16)")
    emit.add_argument("--coefficients", metavar="FILE", help="a fit of your own instead of the packaged ones")
    emit.add_argument("--target", metavar="T", default=TARGETS[0], help=f"{', '.join(TARGETS)} (default: {TARGETS[0]})")
    emit.add_argument("-o", "--out", metavar="PATH", help="file to write (default: print)")
    emit.add_argument("--all", action="store_true", help="in a checkout: write all of kernels/generated anew")
    commands.add_parser("check", help="emit everything again and compare, byte for byte")
    commands.add_parser("list", help="show what is there")
    inspect = commands.add_parser(
        "inspect", help="compile without a GPU: instructions, registers, what bounds a kernel"
    )
    inspect.add_argument("--fn", metavar="NAME", required=True)
    inspect.add_argument("--method", metavar="M", default=METHOD, help=f"{', '.join(METHODS)} (default: {METHOD})")
    inspect.add_argument("--bits", metavar="B", help=f"with fewbit (default: {DEFAULT_BITS})")
    inspect.add_argument("--dtype", metavar="D", default="bfloat16", help=f"{', '.join(DTYPES)} (default: bfloat16)")
    inspect.add_argument("--arch", metavar="A", default="sm_90", help=f"{', '.join(ARCHS)} (default: sm_90)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises `InputError` for bad input."""
    options = _parser().parse_args(arguments)
    match options.command:
        case "emit":
            return _emit(options, list(sys.argv[1:] if arguments is None else arguments))
        case "check":
            return _check()
        case "list":
            return _list()
    return _inspect(options)


def _emit(options: argparse.Namespace, words: list[str]) -> int:
    if options.all:
        usual: dict[str, Any] = {"param": [], "method": METHOD, "target": TARGETS[0]}
        usual |= dict.fromkeys(("fn", "expr", "name", "bits", "dtype", "coefficients", "out"))
        given = [name for name, value in usual.items() if getattr(options, name) != value]
        if given:
            raise InputError(f"--all writes what the project ships, and must stand alone, got --{given[0]} too")
        return _emit_all()
    if options.target not in TARGETS:
        raise InputError(f"target must be one of {', '.join(TARGETS)}, got {options.target!r}")
    out = None if options.out in (None, "-") else command.output_path("out", options.out)
    subject, document = _subject(options)
    if options.method == "all":
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
        out.write_text(text, encoding="utf-8")
    else:
        write_text(out.resolve(), text)  # a link stays, and what it points to is written
        print(f"wrote {out}")
    return command.GOOD


def _subject(options: argparse.Namespace) -> tuple[Subject, Document | None]:
    """What --fn, --expr, --param and --coefficients say."""
    if (options.fn is None) == (options.expr is None):
        got = "none" if options.fn is None else "both"
        raise InputError(f"say what to emit by one of --fn and --expr (or --all), got {got}")
    if options.name is not None and options.expr is None:
        raise InputError("--name goes with --expr")
    params = _params(options.param)
    path = None if options.coefficients is None else Path(options.coefficients)
    if path is not None and not path.is_file():
        raise InputError(f"coefficients must be a file, got {options.coefficients!r}")
    document = None if path is None else load(path)
    if options.fn is not None:
        name = ALIASES.get(options.fn, options.fn)
        if document is not None and not params:
            params = {key: float(value) for key, value in document["function"]["params"].items()}
        activation = get(name, **params)
        if path is None and not params:
            return of_catalogue(name), None
        return of_one(activation, path), document
    name = "custom" if options.name is None else options.name
    if name in names() or name in ALIASES:
        raise InputError(f"name must not be one of the catalogue's, got {name!r}; see --fn")
    return of_one(from_expression(options.expr, name, params), path), document


def _params(texts: Sequence[str]) -> dict[str, float]:
    params: dict[str, float] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        try:
            number = float(value)
        except ValueError:
            equals = ""
        if not equals or key in params:
            raise InputError(f"param must be NAME=NUMBER, each name once, got {text!r}")
        params[key] = number
    return params


def _request(options: argparse.Namespace, subject: Subject, document: Document | None, words: list[str]) -> Request:
    method, dtype, bits = options.method, options.dtype or "bfloat16", _bits(options.bits)
    if options.bits is not None and method != "fewbit":
        raise InputError(f"--bits goes with --method fewbit, got {method}")
    if document is not None:
        stated = document["options"]
        if (method == "fewbit") != (document["method"] == "fewbit") or method == "forward-ad":
            raise InputError(f"method must fit the coefficients, which are of {document['method']}, got {method}")
        bits = stated.get("bits", bits) if options.bits is None else bits
        dtype = stated.get("dtype", dtype) if options.dtype is None else dtype
    out = ("-o", "--out")
    shown = [word for i, word in enumerate(words) if word not in out and words[i - 1] not in out]
    return Request(subject, method, dtype, bits, ("python", "-m", "codegen", *shown))


def _bits(text: str | None) -> int:
    if text is None:
        return DEFAULT_BITS
    if text.strip() not in map(str, range(1, 9)):
        raise InputError(f"bits must be a whole number from 1 to 8, got {text.strip()!r}")
    return int(text)


def _emit_all() -> int:
    if not generated.in_checkout():
        raise InputError(
            f"--all writes the kernels of a checkout of actfit, and must be run in one, got {generated.FOLDER}; for one"
            " function: --fn NAME --method all --out FILE"
        )
    generated.FOLDER.mkdir(exist_ok=True)
    changed = 0
    for path, text in generated.texts():
        if generated.problem(path, text):
            write_text(path, text)
            changed += 1
    for path in generated.strangers():
        print(f"{path} is none of ours: delete it")
    print(f"{changed} files written below {generated.FOLDER}")
    return command.GOOD


def _check() -> int:
    bad = [f"{path}: {fault}" for path, text in generated.texts() if (fault := generated.problem(path, text))]
    bad += [f"{path}: no function stands for it" for path in generated.strangers()]
    for line in bad:
        print(line)
    how = "python -m codegen emit --all" if generated.in_checkout() else "install the package again"
    way_out = f"; to write them anew: {how}" if bad else ""
    print(f"{len(names()) * len(TARGETS) + 1} files, {len(bad)} bad{way_out}")
    return command.BAD if bad else command.GOOD


def _list() -> int:
    print(f"{'function':14}{'parameters':26}{'methods':53}tables")
    for name in names():
        subject = of_catalogue(name)
        methods = [method for method in METHODS if _applies(subject, method)]
        parameters = ", ".join(f"{key}={value:g}" for key, value in subject.activation.params.items())
        print(f"{name:14}{parameters:26}{', '.join(methods):53}{', '.join(map(str, subject.fewbit()))} bits")
    return command.GOOD


def _applies(subject: Subject, method: str) -> bool:
    bits = min(subject.fewbit(), default=0)
    try:
        return bool(Request(subject, method, "bfloat16", bits, ()).saves)
    except InputError:
        return False


def _inspect(options: argparse.Namespace) -> int:
    if options.bits is not None and options.method != "fewbit":
        raise InputError(f"--bits goes with --method fewbit, got {options.method}")
    bits = _bits(options.bits) if options.method == "fewbit" else 0
    name = ALIASES.get(options.fn, options.fn)
    print(as_table(inspect(name, options.method, bits, options.dtype, options.arch)))
    return command.GOOD


def run(arguments: Sequence[str] | None = None) -> int:
    """main as a command: its exit status, whatever happens."""
    return command.run("codegen", lambda: main(arguments), (InputError, CoefficientError))


if __name__ == "__main__":
    sys.exit(run())
