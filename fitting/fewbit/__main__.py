"""actfit fewbit --fn gelu --bits 3: fit, print, prove and store a few-bit derivative."""

from actfit.coefficients import command

if __name__ == "__main__":
    command.exit_on_interrupt()  # before the imports, which take most of the time

from actfit.coefficients.schema import CoefficientError
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.options import bits, budget, check, domain, max_error, parser, widths

if __name__ == "__main__":
    command.early("fewbit", lambda: check(parser().parse_args()), (InputError,))

import argparse
import sys
from contextlib import closing

from tqdm import tqdm

from actfit.coefficients import progress
from actfit.coefficients.document import dumps, seal
from actfit.coefficients.functions import names
from actfit.fitting import options as shared
from actfit.fitting.activations import Activation
from actfit.fitting.fewbit import document, recorded, report
from actfit.fitting.fewbit.several import several
from actfit.fitting.fewbit.solve import Fit, fit, fit_to_error
from actfit.fitting.fewbit.sweep import shipped, sweep
from actfit.fitting.joint.command import joint
from actfit.fitting.weights import Weight, parse_weight
from actfit.fitting.words import percent

NOWHERE = "not written: time cut it short"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; raises `InputError` for bad input, SystemExit(2) for unknown options."""
    options = parser().parse_args(arguments)
    check(options)
    if options.record is not None:
        return recorded.tables(options, print)
    if options.joint:
        return joint(options, print)
    weight = parse_weight("uniform" if options.weight is None else options.weight)
    if options.all:
        return _all(options, weight)
    if (compared := widths(options)) is not None:
        return several(options, compared, weight, print)
    out = None if options.out in (None, "-") else command.output_path("out", options.out)
    if options.plot is not None:
        # Here and not at the top: matplotlib takes as long to import as all the rest.
        from actfit.fitting import plots

        plot = command.output_path("plot", options.plot)
        plots.check_path(plot)
    activation = shared.activation(options)
    result = _fit(options, activation, weight)
    if options.plot is not None:
        plots.save(plots.fewbit_figure(result), plot)
    if options.out == "-":
        print(dumps(seal(document.to_document(result), 1)), end="")
        return command.GOOD
    if result.budget is not None and out is None:
        text, where = dumps(seal(document.to_document(result), 1)), f"{NOWHERE}; --out PATH writes it"
        command.say("fewbit", where)  # whatever the format, and with --quiet too
    else:
        text, where = shared.deliver(document.to_document(result), document.file_name(result), out, options.root)
    if not options.quiet:
        _print(result, options, text, where)
    return command.GOOD


def _fit(options: argparse.Namespace, activation: Activation, weight: Weight) -> Fit:
    """The fit that --bits or --max-error asks for; on a terminal, a line says what is being done."""
    levels, ends, limit = options.levels, domain(options), max_error(options)
    with progress.shown(options.quiet) as report:
        if limit is not None:
            return fit_to_error(activation, limit, levels=levels, weight=weight, domain=ends, report=report)
        count, seconds = bits(options), budget(options)
        return fit(activation, count, levels=levels, weight=weight, domain=ends, budget=seconds, report=report)


def _print(result: Fit, options: argparse.Namespace, text: str, where: str) -> None:
    match options.format:
        case "json":
            print(text, end="")
        case "csv":
            print(report.as_csv(result))
        case "latex":
            print(report.as_latex(result))
        case _:
            print(report.encodable(report.as_table(result)))
            print(f"file    {where}")
            if options.plot is not None:
                print(f"plot    wrote {options.plot}")


def _all(options: argparse.Namespace, weight: Weight) -> int:
    jobs, seconds = shared.jobs(options.jobs), budget(options)
    tasks = shipped() if options.bits is None else [(name, bits(options)) for name in names()]
    fitted = sweep(tasks, options.levels, weight, domain(options), jobs, options.scheduler, seconds)
    written, cut, largest = 0, 0, 0.0
    no_bar = True if options.quiet else None  # None: where stderr is no terminal
    with (
        closing(fitted) as fits,
        tqdm(fits, total=len(tasks), unit="table", disable=no_bar, leave=False) as bar,
    ):
        for result in bar:
            if result.budget is None:
                published = shared.stored(document.to_document(result), document.file_name(result), options.root)
                written += published.written
                where = str(published.path)
            else:
                cut += 1
                where = NOWHERE
            largest = max(largest, result.error.gap)
            if not options.quiet:
                bar.write(report.as_line(result, where))
    if not options.quiet:
        unchanged = f"{len(tasks) - written - cut} unchanged" + f", {cut} cut short and not written" * (cut > 0)
        print(f"{len(tasks)} tables: {written} written, {unchanged}; largest gap {percent(largest)}")
    elif cut:
        command.say("fewbit", f"{cut} of {len(tasks)} tables {NOWHERE}")
    return command.GOOD


def run(arguments: list[str] | None = None) -> int:
    """main as a command: its exit status, whatever happens."""
    return command.run("fewbit", lambda: main(arguments), (InputError, CoefficientError))


if __name__ == "__main__":
    sys.exit(run())
