"""Fits of one function with several bits: a line for each, and a picture of their errors. Nothing is stored."""

import argparse
from collections.abc import Callable, Sequence

from actfit.coefficients import command, progress
from actfit.fitting import options as shared
from actfit.fitting.fewbit import report
from actfit.fitting.fewbit.options import budget, domain
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.weights import Weight


def several(options: argparse.Namespace, widths: Sequence[int], weight: Weight, say: Callable[[str], None]) -> int:
    """Fit, print and draw what the options ask for; returns the exit status."""
    if options.plot is not None:
        from actfit.fitting import plots  # here, as matplotlib takes as long to import as all the rest

        plot = command.output_path("plot", options.plot)
        plots.check_path(plot)
    activation, fits = shared.activation(options), []
    with progress.shown(options.quiet) as doing:
        for bits in widths:
            doing(f"{bits} bits")
            fits.append(
                fit(
                    activation,
                    bits,
                    levels=options.levels,
                    weight=weight,
                    domain=domain(options),
                    budget=budget(options),
                )
            )
    if options.plot is not None:
        plots.save(plots.widths_figure(fits), plot)
    if not options.quiet:
        for result in fits:
            say(report.as_line(result, "").rstrip())
        if options.plot is not None:
            say(f"plot    wrote {options.plot}")
    return command.GOOD
