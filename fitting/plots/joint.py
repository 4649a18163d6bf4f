"""The picture of a joint code: the curve of f' and f with its levels, and what each λ makes of the two errors."""

from collections.abc import Callable
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from fitting.activations.tape import Array
from fitting.joint.rules import LARGEST, LEAST
from fitting.joint.solve import JointFit, fit_joint

POINTS = 2000
RATIOS = 2.0 ** np.arange(-6, 7)  # of λ, beside the fit's own
CLOSE = 0.05  # the gap of the codes along the trade-off: a picture shows no more
SHOWN = 4.0  # |x|: beyond, the tails of f would take most of the picture


def joint_figure(fit: JointFit, report: Callable[[str], None] | None = None) -> Figure:
    """f' against f with the code's levels on the left; both errors, for λ from a 64th to 64 times, on the right.

    Fits a code for each λ; `report` is told which.
    """
    name = fit.activation.name
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    plane, errors = figure.subplots(1, 2)
    lo, hi = max(fit.domain[0], -SHOWN), min(fit.domain[1], SHOWN)
    x = np.linspace(lo, hi, POINTS)
    plane.plot(fit.activation.f(x), fit.activation.df(x), color="0.7", linewidth=2, label="(f, f′)")
    plane.plot(fit.table.outputs, fit.table.derivatives, "C0.", label=f"{fit.bits} bit{'s' * (fit.bits > 1)}")
    plane.set(xlabel="f", ylabel="f′", title="the levels", xlim=_wider(fit.activation.f(x)))
    plane.legend(frameon=False)
    others = _along(fit, report)
    errors.plot(
        [one.error.output_share for one in others], [one.error.derivative_share for one in others], "C0.-", linewidth=1
    )
    errors.plot(
        fit.error.output_share, fit.error.derivative_share, "C3*", markersize=12, label=f"λ = {fit.output_weight:g}"
    )
    errors.set(
        xlabel="relative error of f", ylabel="relative error of f′", title="for other λ", xscale="log", yscale="log"
    )
    errors.legend(frameon=False)
    figure.suptitle(f"{name} and {name}′ by one code, w = {fit.weight.label}", fontsize="large", wrap=True)
    return figure


def _along(fit: JointFit, report: Callable[[str], None] | None) -> list[JointFit]:
    """The codes of as many bits for other λ."""
    fits = []
    ratios = fit.output_weight * RATIOS
    for ratio in ratios[(ratios >= LEAST) & (ratios <= LARGEST)]:
        if report is not None:
            report(f"lambda {ratio:g}, for the picture")
        like = partial(fit_joint, fit.activation, fit.bits, weight=fit.weight, domain=fit.domain)
        fits.append(like(output_weight=float(ratio), target_gap=CLOSE))
    return fits


def _wider(values: Array) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin
