"""Pictures of joint codes: the levels on the curve of f' and f, and both errors, for each λ and each number of bits."""

from collections.abc import Callable
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from actfit.fitting.activations import Activation
from actfit.fitting.activations.tape import Array
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.joint.judge import errors as judged_errors
from actfit.fitting.joint.rules import LARGEST, LEAST
from actfit.fitting.joint.solve import DEFAULT_WEIGHT, JointFit, fit_joint
from actfit.fitting.plots.axes import logarithmic, resolved
from actfit.fitting.weights import Weight, named

POINTS = 2000
RATIOS = 2.0 ** np.arange(-6, 7)  # of other λ to the fit's own
CLOSE = 0.05  # the gap of the codes along the trade-off: a smaller one would not show
SHOWN = 4.0  # the largest |x|: beyond, the tails of f would take most of the picture
BITS = range(2, 9)  # of a joint code; compared with a code of half the bits for f' and another for f


def joint_figure(fit: JointFit, report: Callable[[str], None] | None = None) -> Figure:
    """f' against f with the code's levels on the left; both errors, for λ from a 64th to 64 times, on the right.

    Fits a code for each λ; `report` is called with a text that names it.
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
    other_codes = _along(fit, report)
    errors.plot(
        [code.error.output_share for code in other_codes],
        [code.error.derivative_share for code in other_codes],
        "C0.-",
        linewidth=1,
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


def joint_bits_figure(activation: Activation, weight: Weight | None = None) -> Figure:
    """Both relative errors of joint codes by their bits, beside those of two codes of half as many bits each.

    The two are the best few-bit table of f', and the best quantiser of f on successive intervals. weight: the
    distribution of x; the standard normal one by default. An error of 0 is not drawn: the scale is logarithmic.

    Raises `InputError` for a function and a weight that `fit_joint` refuses.
    """
    weight = named(DEFAULT_WEIGHT) if weight is None else weight
    codes = {bits: fit_joint(activation, bits, weight=weight, target_gap=CLOSE) for bits in BITS}
    first = codes[BITS[0]]
    whole = judged_errors(activation, weight, first.domain, first.table).derivative_whole
    halves = {bits: bits // 2 for bits in BITS if bits % 2 == 0}
    tables = [fit(activation, half, weight=weight).error.l2_squared for half in halves.values()]
    outputs = [
        fit_joint(activation, half, weight=weight, output_weight=LARGEST, target_gap=CLOSE).error.output_share
        for half in halves.values()
    ]
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    rows = (
        ("f′", [code.error.derivative_share for code in codes.values()], [(error / whole) ** 0.5 for error in tables]),
        ("f", [code.error.output_share for code in codes.values()], outputs),
    )
    for axes, (title, together, apart) in zip(panels, rows, strict=True):
        axes.plot(list(codes), resolved(np.array(together)), "C0o-", label="one code for both")
        axes.plot(list(halves), resolved(np.array(apart)), "C1s-", label="two codes, of half the bits each")
        axes.set(title=title, xlabel="bits kept for f′ and f together", xticks=list(BITS))
        axes.grid(axis="y", color="0.92")
        logarithmic(axes, "no error")
    panels[0].set_ylabel("relative error")
    panels[1].legend(frameon=False)
    figure.suptitle(f"{activation.name} and {activation.name}′, w = {weight.label}", fontsize="large")
    return figure


def _along(fit: JointFit, report: Callable[[str], None] | None) -> list[JointFit]:
    """The codes of the same number of bits for other λ."""
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
