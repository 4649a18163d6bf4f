"""python -m fitting.fewbit --fn gelu --bits 3: fit, print, prove and store a few-bit derivative."""

from coefficients import command

if __name__ == "__main__":
    command.exit_on_interrupt()  # before the imports, which take most of the time

import argparse
import sys
from contextlib import closing

from tqdm import tqdm

from coefficients import CoefficientError
from coefficients.document import dumps, seal
from fitting import options as shared
from fitting.activations import names
from fitting.errors import InputError
from fitting.fewbit import document, report
from fitting.fewbit.solve import KINDS, MAX_BITS, Fit, fit, fit_to_error
from fitting.fewbit.sweep import shipped, sweep
from fitting.weights import Weight, parse_weight
from fitting.words import percent

PROG = "python -m fitting.fewbit"
FORMATS = ("table", "json", "csv", "latex")


def _parser() -> command.Parser:
    parser = command.Parser(
        prog=PROG,
        description="The best approximation of an activation's derivative by 2**bits levels, and a proof of it.",
        epilog="Memory: a layer keeps `bits` bits an element for backward instead of a whole number.",
    )
    shared.add_function(parser, "every table that the project ships (or all functions at --bits)")
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
    shared.add_output(parser, FORMATS, "draw f', the steps and the error (.png, .svg, .pdf)")
    shared.add_workers(parser)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command; raises `InputError` for bad input, SystemExit(2) for unknown options."""
    options = _parser().parse_args(arguments)
    _check_together(options)
    weight = parse_weight(options.weight)
    domain = None
    if options.domain is not None:
        lo, hi = (shared.number("domain", end) + 0.0 for end in options.domain)  # + 0.0 makes 0 of -0
        domain = lo, hi
    if options.all:
        return _all(options, weight, domain)
    out = None if options.out in (None, "-") else command.output_path("out", options.out)
    if options.plot is not None:
        # Here and not at the top: matplotlib takes as long to import as all the rest.
        from fitting import plots

        plot = command.output_path("plot", options.plot)
        plots.check_path(plot)
    activation = shared.activation(options)
    if options.max_error is not None:
        limit = shared.number("max-error", options.max_error)
        result = fit_to_error(activation, limit, levels=options.levels, weight=weight, domain=domain)
    else:
        result = fit(activation, _bits(options), levels=options.levels, weight=weight, domain=domain)
    if options.plot is not None:
        plots.save(plots.fewbit_figure(result), plot)
    if options.out == "-":
        print(dumps(seal(document.to_document(result), 1)), end="")
        return command.GOOD
    text, where = shared.deliver(document.to_document(result), out, lambda: document.store(result))
    if not options.quiet:
        _print(result, options, text, where)
    return command.GOOD


def _check_together(options: argparse.Namespace) -> None:
    """Options that need or exclude each other."""
    shared.check_function(options)
    shared.check_output(options, FORMATS)
    if options.all:
        shared.check_alone(options, ("param", "max_error", "out", "plot"))
        if options.levels == "even":
            raise InputError("--levels even goes with one function, not with --all: not every f' is even")
    else:
        if (options.bits is None) == (options.max_error is None):
            got = "neither" if options.bits is None else "both"
            raise InputError(f"one of --bits (1 to 8) and --max-error must say how fine, got {got}")
    shared.check_workers(options)


def _bits(options: argparse.Namespace) -> int:
    return shared.whole("bits", options.bits, f" from 1 to {MAX_BITS}")


def _print(result: Fit, options: argparse.Namespace, text: str, where: str) -> None:
    match options.format:
        case "json":
            print(text, end="")
        case "csv":
            print(report.as_csv(result))
        case "latex":
            print(report.as_latex(result))
        case _:
            print(_encodable(report.as_table(result)))
            print(f"file    {where}")
            if options.plot is not None:
                print(f"plot    wrote {options.plot}")


def _encodable(text: str) -> str:
    """The table in words where stdout cannot take its signs."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return text.replace("∫", "integral of ").replace("²", "^2 ")
    return text


def _all(options: argparse.Namespace, weight: Weight, domain: tuple[float, float] | None) -> int:
    jobs = shared.jobs(options.jobs)
    tasks = shipped() if options.bits is None else [(name, _bits(options)) for name in names()]
    written, largest = 0, 0.0
    no_bar = True if options.quiet else None  # None: where stderr is no terminal
    with (
        closing(sweep(tasks, options.levels, weight, domain, jobs, options.scheduler)) as fits,
        tqdm(fits, total=len(tasks), unit="table", disable=no_bar, leave=False) as progress,
    ):
        for result in progress:
            published = document.store(result)
            written += published.written
            largest = max(largest, result.error.gap)
            if not options.quiet:
                progress.write(report.as_line(result, str(published.path)))
    if not options.quiet:
        unchanged = len(tasks) - written
        print(f"{len(tasks)} tables: {written} written, {unchanged} unchanged; largest gap {percent(largest)}")
    return command.GOOD


def run(arguments: list[str] | None = None) -> int:
    """main as a command: its exit status, whatever happens."""
    return command.run("fewbit", lambda: main(arguments), (InputError, CoefficientError))


if __name__ == "__main__":
    sys.exit(run())
