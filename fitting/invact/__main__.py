"""python -m fitting.invact --fn silu --dtype bfloat16: f' from the stored output; fit, print, prove and store it."""

from coefficients import command

if __name__ == "__main__":
    command.exit_on_interrupt()  # before the imports, which take most of the time

from coefficients.schema import CoefficientError
from fitting.errors import InputError
from fitting.invact.arguments import check, parser

if __name__ == "__main__":
    command.early("invact", lambda: check(parser().parse_args()), (InputError,))

import argparse
import sys
from contextlib import closing

from tqdm import tqdm

from coefficients.document import dumps, seal
from fitting import options as shared
from fitting.activations import Activation
from fitting.invact import document, report
from fitting.invact import options as given
from fitting.invact.engines import Settings
from fitting.invact.formats import FORMATS
from fitting.invact.solve import DEFAULT_WEIGHT, Fit, fit
from fitting.invact.sweep import shipped, sweep
from fitting.weights import parse_weight


def main(arguments: list[str] | None = None) -> int:
    """Run the command; raises `InputError` for bad input, SystemExit(2) for unknown options."""
    options = parser().parse_args(arguments)
    check(options)
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
    text, where = shared.deliver(document.to_document(result), document.file_name(result), out, options.root)
    if not options.quiet:
        _print(result, options, text, where)
    return command.GOOD


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
            published = shared.stored(made.document, made.name, options.root)
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
