"""actfit fewbit --joint: fit, print, prove and store joint codes."""

import argparse
from collections.abc import Callable, Generator
from contextlib import closing

from tqdm import tqdm

from actfit.coefficients import command, progress
from actfit.coefficients.document import dumps, seal
from actfit.coefficients.functions import names
from actfit.fitting import options as shared
from actfit.fitting import sweep
from actfit.fitting.activations import get
from actfit.fitting.fewbit.options import bits, domain, output_weight
from actfit.fitting.fewbit.report import encodable
from actfit.fitting.joint import document, report
from actfit.fitting.joint.solve import DEFAULT_WEIGHT, JointFit, fit_joint
from actfit.fitting.weights import Weight, parse_weight
from actfit.fitting.words import percent

SHIPPED = ("gelu", "gelu_tanh", "quick_gelu", "silu", "mish")
SHIPPED_BITS = range(2, 9)


def joint(options: argparse.Namespace, show: Callable[[str], None]) -> int:
    """Run the command with checked options of `fitting.fewbit`; `show` prints. Raises `InputError` for bad input."""
    weight = parse_weight(DEFAULT_WEIGHT if options.weight is None else options.weight)
    if options.all:
        return _all(options, weight, show)
    out = None if options.out in (None, "-") else command.output_path("out", options.out)
    if options.plot is not None:
        from actfit.fitting import plots  # here and not at the top: matplotlib takes as long to import as all the rest

        plot = command.output_path("plot", options.plot)
        plots.check_path(plot)
    activation = shared.activation(options)
    with progress.shown(options.quiet) as report_progress:
        fit = fit_joint(
            activation,
            bits(options),
            output_weight=output_weight(options),
            weight=weight,
            domain=domain(options),
            report=report_progress,
        )
        if options.plot is not None:
            plots.save(plots.joint_figure(fit, report_progress), plot)
    if options.out == "-":
        show(dumps(seal(document.to_document(fit), 1)).removesuffix("\n"))
        return command.GOOD
    text, where = shared.deliver(document.to_document(fit), document.file_name(fit), out, options.root)
    if not options.quiet:
        show(_text(fit, options, text, where))
    return command.GOOD


def _text(fit: JointFit, options: argparse.Namespace, written: str, where: str) -> str:
    match options.format:
        case "json":
            return written.removesuffix("\n")
        case "csv":
            return report.as_csv(fit)
        case "latex":
            return report.as_latex(fit)
        case _:
            plot = [f"plot    wrote {options.plot}"] if options.plot is not None else []
            return "\n".join([encodable(report.as_table(fit)), f"file    {where}", *plot])


def _all(options: argparse.Namespace, weight: Weight, show: Callable[[str], None]) -> int:
    if options.bits is None:
        tasks = [(name, count) for name in SHIPPED for count in SHIPPED_BITS]
    else:
        tasks = [(name, bits(options)) for name in names()]
    arguments = (output_weight(options), weight, domain(options))
    fitted: Generator[JointFit, None, None] = sweep.run(
        _fit, [(*task, *arguments) for task in tasks], shared.jobs(options.jobs), options.scheduler
    )
    written, largest = 0, 0.0
    no_bar = True if options.quiet else None  # None: where stderr is no terminal
    with closing(fitted) as fits, tqdm(fits, total=len(tasks), unit="code", disable=no_bar, leave=False) as bar:
        for fit in bar:
            published = shared.stored(document.to_document(fit), document.file_name(fit), options.root)
            written += published.written
            largest = max(largest, fit.error.gap)
            if not options.quiet:
                bar.write(report.as_line(fit, str(published.path)))
    if not options.quiet:
        unchanged = len(tasks) - written
        show(f"{len(tasks)} codes: {written} written, {unchanged} unchanged; largest gap {percent(largest)}")
    return command.GOOD


def _fit(name: str, count: int, ratio: float, weight: Weight, ends: tuple[float, float] | None) -> JointFit:
    return fit_joint(get(name), count, output_weight=ratio, weight=weight, domain=ends)
