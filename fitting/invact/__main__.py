"""python -m fitting.invact --fn silu --dtype bfloat16: f' from the stored output; fit, print, prove and store it."""

from coefficients import command

if __name__ == "__main__":
    command.exit_on_interrupt()  # before the imports, which take most of the time

import argparse
import sys
from contextlib import closing

from tqdm import tqdm

from coefficients import CoefficientError
from coefficients.document import dumps, seal
from coefficients.store import publish
from fitting import options as shared
from fitting.activations import Activation
from fitting.errors import InputError
from fitting.invact import document, papers, report
from fitting.invact import options as given
from fitting.invact.engines import DEFAULT, ENGINES, Settings
from fitting.invact.formats import FORMATS, get_format
from fitting.invact.solve import DEFAULT_WEIGHT, Fit, fit
from fitting.invact.sweep import shipped, sweep
from fitting.provenance import DEFAULT_ROOT
from fitting.weights import parse_weight

PROG = "python -m fitting.invact"
PRINTED = ("table", "json", "csv", "latex")


def _parser() -> command.Parser:
    parser = command.Parser(
        prog=PROG,
        description="Formulas for an activation's derivative from its stored output y and one bit.",
        epilog="Memory: a layer keeps the output, which the next one keeps anyway, and 1 bit an element or none.",
    )
    shared.add_function(parser, "every file that the project ships (or all functions in --dtype)")
    how = parser.add_argument_group("how")
    how.add_argument("--dtype", metavar="D", help=f"of the stored output: {', '.join(FORMATS)}")
    how.add_argument(
        "--engine",
        metavar="E,E",
        help=f"some of {','.join(ENGINES)}; all; or {papers.ENGINE}, the paper's (default: {','.join(DEFAULT)})",
    )
    how.add_argument("--max-error", metavar="E", help="instead of the dtype's own rule: the largest |q - g| allowed")
    how.add_argument("--weight", metavar="W", help=f"of x, as in fitting.fewbit (default: {DEFAULT_WEIGHT})")
    how.add_argument("--seed", metavar="N", help="of engines that draw lots (default: 0)")
    how.add_argument("--budget", metavar="N", help="starts of a template, runs of operon, iterations of pysr")
    how.add_argument("--timeout", metavar="SECONDS", help="of each search by pysr; one that it ends is not repeatable")
    how.add_argument(
        "--template", metavar="TEXT", action="append", default=[], help='as in "1 + (a + b*s)*exp(c*s)"; repeatable'
    )
    how.add_argument(
        "--start",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="where a template's constant begins (default: 1); repeatable",
    )
    how.add_argument("--import-pysr", metavar="DIR", help="also take the formulas of a PySR run made elsewhere")
    where = shared.add_output(parser, PRINTED, "draw g, q, the error and the front (.png, .svg, .pdf)")
    where.add_argument("--front", action="store_true", help="print the whole front, not only what is near the choice")
    shared.add_workers(parser)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command; raises `InputError` for bad input, SystemExit(2) for unknown options."""
    options = _parser().parse_args(arguments)
    _check_together(options)
    if options.dtype is not None:
        get_format(options.dtype)
    settings = given.settings(options)
    if options.all:
        return _all(options, settings)
    out = None if options.out in (None, "-") else command.output_path("out", options.out)
    if options.plot is not None:
        # Here and not at the top: matplotlib takes as long to import as all the rest.
        from fitting import plots

        plot = command.output_path("plot", options.plot)
        plots.check_path(plot)
    result = _fit(shared.activation(options), options, settings)
    if options.plot is not None:
        plots.save(plots.invact_figure(result), plot)
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
    shared.check_output(options, PRINTED)
    if options.front and (options.format != "table" or options.out == "-"):
        raise InputError("--front goes with --format table; the others hold the whole front anyway")
    if options.all:
        shared.check_alone(options, ("param", "template", "start", "import_pysr", "out", "plot", "front"))
    else:
        if options.dtype is None:
            raise InputError(f"say how y is stored by --dtype: {', '.join(FORMATS)}")
    shared.check_workers(options)


def _fit(activation: Activation, options: argparse.Namespace, settings: Settings) -> Fit:
    """The fit, with a bar for the problems that engines are given."""
    weight = parse_weight(DEFAULT_WEIGHT if options.weight is None else options.weight)
    with tqdm(unit="problem", disable=True if options.quiet else None, leave=False) as bar:

        def progress(done: int, count: int) -> None:
            bar.total = count
            bar.update(done - bar.n)

        return fit(
            activation,
            options.dtype,
            engines=given.engines(options),
            weight=weight,
            max_error=given.max_error(options),
            settings=settings,
            progress=progress,
        )


def _print(result: Fit, options: argparse.Namespace, text: str, where: str) -> None:
    match options.format:
        case "json":
            print(text, end="")
        case "csv":
            print(report.as_csv(result))
        case "latex":
            print(report.as_latex(result))
        case _:
            print(report.as_table(result, options.front))
            print(f"file    {where}")
            if options.plot is not None:
                print(f"plot    wrote {options.plot}")


def _all(options: argparse.Namespace, settings: Settings) -> int:
    jobs = shared.jobs(options.jobs)
    engines, limit = given.engines(options), given.max_error(options)
    tasks = shipped(tuple(FORMATS) if options.dtype is None else (options.dtype,), engines)
    weight = parse_weight(DEFAULT_WEIGHT if options.weight is None else options.weight)
    written, exact = 0, 0
    no_bar = True if options.quiet else None  # None: where stderr is no terminal
    with (
        closing(sweep(tasks, engines, weight, limit, settings, jobs, options.scheduler)) as fits,
        tqdm(fits, total=len(tasks), unit="file", disable=no_bar, leave=False) as progress,
    ):
        for made in progress:
            published = publish(made.document, made.name, DEFAULT_ROOT)
            written += published.written
            exact += all(branch["engine"] == "closed" for branch in made.document["solution"]["branches"])
            if not options.quiet:
                progress.write(report.as_line(made.document, str(published.path)))
    if not options.quiet:
        unchanged = len(tasks) - written
        print(f"{len(tasks)} files: {written} written, {unchanged} unchanged; {exact} of them closed forms")
    return command.GOOD


def run(arguments: list[str] | None = None) -> int:
    """main as a command: its exit status, whatever happens."""
    return command.run("invact", lambda: main(arguments), (InputError, CoefficientError))


if __name__ == "__main__":
    sys.exit(run())
