"""python -m fitting.fewbit --fn gelu --bits 3: fit, print, prove and store a few-bit derivative."""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from coefficients import CoefficientError, command
from coefficients.document import dumps, seal
from coefficients.store import write
from fitting.activations import Activation, from_expression, get, names
from fitting.errors import InputError
from fitting.fewbit import document, report
from fitting.fewbit.fit import KINDS, MAX_BITS, Fit, fit, fit_to_error
from fitting.fewbit.sweep import shipped, sweep
from fitting.fewbit.weights import Weight, parse_weight

PROG = "python -m fitting.fewbit"
FORMATS = ("table", "json", "csv", "latex")


def _parser() -> command.Parser:
    parser = command.Parser(
        prog=PROG,
        description="The best approximation of an activation's derivative by 2**bits levels, and a proof of it.",
        epilog="Memory: a layer keeps `bits` bits an element for backward instead of a whole number.",
    )
    what = parser.add_argument_group("what to fit")
    what.add_argument("--fn", metavar="NAME", help=f"one of {', '.join(names())}")
    what.add_argument("--expr", metavar="TEXT", help='your own f, as in "x*tanh(log(1+exp(x)))"')
    what.add_argument("--name", metavar="NAME", help="what to call it (default: custom)")
    what.add_argument(
        "--param", metavar="NAME=VALUE", action="append", default=[], help="set a parameter of f; repeatable"
    )
    what.add_argument(
        "--all", action="store_true", help="every table that the project ships (or all functions at --bits)"
    )
    how = parser.add_argument_group("how")
    how.add_argument("--bits", metavar="B", help=f"1 to {MAX_BITS}; 2**B levels")
    how.add_argument(
        "--max-error", metavar="E", help="instead of --bits: the fewest bits whose squared error is at most E"
    )
    how.add_argument("--levels", metavar="KIND", default="best", help=f"{', '.join(KINDS)} (default: best)")
    how.add_argument(
        "--weight",
        metavar="W",
        default="uniform",
        help="uniform, a scipy.stats distribution like norm(0,2), or a file of samples",
    )
    how.add_argument("--domain", metavar=("A", "B"), nargs=2, help="default: -10 10, or where the weight is")
    where = parser.add_argument_group("output")
    where.add_argument(
        "--out", metavar="PATH", help=f"file to write, - for stdout (default: below {document.DEFAULT_ROOT})"
    )
    where.add_argument(
        "--format",
        metavar="F",
        default="table",
        help=f"what is printed: {', '.join(FORMATS)} (default: table)",
    )
    where.add_argument("--plot", metavar="FILE", type=Path, help="draw f', the steps and the error (.png, .svg, .pdf)")
    where.add_argument("--quiet", action="store_true", help="print nothing")
    many = parser.add_argument_group("with --all")
    many.add_argument("--jobs", metavar="N", default="1", help="worker processes; -1 for one a core (default: 1)")
    many.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler to do the work instead")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command; raises `InputError` for bad input, SystemExit(2) for unknown options."""
    options = _parser().parse_args(arguments)
    _check_together(options)
    if options.plot:
        # Here and not at the top: matplotlib takes as long to import as all the rest.
        from fitting import plots

        plots.check_path(options.plot)
    weight = parse_weight(options.weight)
    domain = (_number("domain", options.domain[0]), _number("domain", options.domain[1])) if options.domain else None
    if options.all:
        return _all(options, weight, domain)
    activation = _activation(options)
    if options.max_error is not None:
        limit = _number("max-error", options.max_error)
        result = fit_to_error(activation, limit, levels=options.levels, weight=weight, domain=domain)
    else:
        result = fit(activation, _whole("bits", options.bits), levels=options.levels, weight=weight, domain=domain)
    where = _store(result, options.out)
    if options.plot:
        plots.save(plots.fewbit_figure(result), options.plot)
    if not options.quiet and options.out != "-":
        _print(result, options, where)
    return command.GOOD


def _check_together(options: argparse.Namespace) -> None:
    """Options that need or exclude each other."""
    chosen = [name for name in ("fn", "expr", "all") if getattr(options, name)]
    if len(chosen) != 1:
        got = " and ".join(f"--{name}" for name in chosen) or "none"
        raise InputError(f"say what to fit by one of --fn, --expr and --all, got {got}")
    if options.name is not None and options.expr is None:
        raise InputError("--name goes with --expr")
    if options.format not in FORMATS:
        raise InputError(f"format must be one of {', '.join(FORMATS)}, got {options.format!r}")
    if options.all:
        for name in ("param", "max_error", "out", "plot"):
            if getattr(options, name):
                raise InputError(f"--{name.replace('_', '-')} goes with one function, not with --all")
        if options.format != "table":
            raise InputError("--format goes with one function, not with --all")
    else:
        if (options.bits is None) == (options.max_error is None):
            raise InputError("say how fine by one of --bits (1 to 8) and --max-error")
        if options.jobs != "1" or options.scheduler:
            raise InputError("--jobs and --scheduler go with --all")


def _activation(options: argparse.Namespace) -> Activation:
    params = {}
    for text in options.param:
        key, equals, value = text.partition("=")
        if not equals or key in params:
            raise InputError(f"param must be NAME=VALUE, each name once, got {text!r}")
        params[key.strip()] = _number(f"param {key.strip()}", value)
    if options.fn:
        return get(options.fn, **params)
    name = options.name or "custom"
    if name in names():
        raise InputError(f"name must not be one of the catalogue's, got {name!r}; see --fn")
    return from_expression(options.expr, name, params)


def _number(what: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{what} must be a number, got {text.strip()!r}") from None


def _whole(what: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{what} must be a whole number, got {text.strip()!r}") from None


def _store(result: Fit, out: str | None) -> str:
    """Write the document where asked, and say where that is."""
    if out is None:
        published = document.store(result)
        return f"{'wrote' if published.written else 'found the same in'} {published.path}"
    sealed = seal(document.to_document(result), 1)
    if out == "-":
        sys.stdout.write(dumps(sealed))
        return ""
    write(sealed, Path(out))
    return f"wrote {out}"


def _print(result: Fit, options: argparse.Namespace, where: str) -> None:
    match options.format:
        case "json":
            print(dumps(seal(document.to_document(result), 1)), end="")
        case "csv":
            print(report.as_csv(result))
        case "latex":
            print(report.as_latex(result))
        case _:
            print(report.as_table(result))
            print(f"file    {where}")
            if options.plot:
                print(f"plot    wrote {options.plot}")


def _all(options: argparse.Namespace, weight: Weight, domain: tuple[float, float] | None) -> int:
    jobs = _whole("jobs", options.jobs)
    if jobs == 0 or jobs < -1:
        raise InputError(f"jobs must be at least 1, or -1 for one a core, got {jobs}")
    tasks = shipped() if options.bits is None else [(name, _whole("bits", options.bits)) for name in names()]
    written, largest = 0, 0.0
    fits = sweep(tasks, options.levels, weight, domain, jobs, options.scheduler)
    with tqdm(fits, total=len(tasks), unit="table", disable=None) as progress:
        for result in progress:
            published = document.store(result)
            written += published.written
            largest = max(largest, result.error.gap)
            if not options.quiet:
                progress.write(_summary(result, str(published.path)))
    if not options.quiet:
        print(f"{len(tasks)} tables, {written} written, the rest as they were; largest gap {100 * largest:.2g} %")
    return command.GOOD


def _summary(result: Fit, path: str) -> str:
    name, error = result.activation.name, result.error
    return f"{name:12} {result.bits} bits  {error.l2_squared:<12.6g} gap {100 * error.gap:<8.2g} % {path}"


if __name__ == "__main__":
    sys.exit(command.run("fewbit", main, (InputError, CoefficientError)))
