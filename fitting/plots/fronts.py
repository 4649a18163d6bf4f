"""How g = f'∘f⁻¹ is fitted: the variable in which it is smooth, and the fronts of engines."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.polynomial import Chebyshev

from actfit.fitting.activations import Activation
from actfit.fitting.activations.tape import Array
from actfit.fitting.errors import InputError
from actfit.fitting.invact.branches import split
from actfit.fitting.invact.exact import derivative_from_output
from actfit.fitting.invact.front import Row
from actfit.fitting.invact.judge import rule_for
from actfit.fitting.invact.solve import Fit

DEGREES = range(1, 13)
POINTS = 2000
FAR = 4.0  # a branch is shown up to this distance from the minimum


def root_figure(activation: Activation) -> Figure:
    """g near f's minimum, against y and against s = √(y - min f), and errors of polynomials in each by degree.

    Raises `InputError` for a function without a smooth minimum.
    """
    parts = split(activation)
    if parts.border is None or parts.border in activation.breakpoints:
        raise InputError(f"{activation.name} has no smooth minimum, and so no root; try gelu, silu or mish")
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    against_y, against_s, errors = figure.subplots(1, 3, width_ratios=(1, 1, 1.2))
    least = float(activation.f(parts.border))
    for i, (branch, name) in enumerate(zip(parts.branches, ("left", "right"), strict=True)):
        end = max(branch.lo, parts.border - FAR) if i == 0 else min(branch.hi, parts.border + FAR)
        far = float(np.sqrt(float(activation.f(end)) - least))
        s = far * (1 - np.cos(np.linspace(0, np.pi, POINTS))) / 2
        y = least + s**2
        g = derivative_from_output(branch, y)
        against_y.plot(y, g, color=f"C{i}", label=name)
        against_s.plot(s if i else -s, g, color=f"C{i}", label=name)
        evenly = least + far * s  # as far, and dense at both ends
        for at, values, style, variable in (
            (evenly, derivative_from_output(branch, evenly), "--", "y"),
            (s, g, "-", "s"),
        ):
            largest = [_largest(at, values, degree) for degree in DEGREES]
            errors.plot(list(DEGREES), largest, style, color=f"C{i}", marker=".", label=f"{name}, in {variable}")
    against_y.set(xlabel="y", ylabel="g = f′(f⁻¹(y))", title="in y it begins as a root")
    against_s.set(xlabel="s = ±√(y − min f)", title="in s it is smooth")
    against_y.axvline(least, color="0.7", linewidth=0.8, linestyle=":")
    errors.set(xlabel="degree", ylabel="largest error", title="polynomials of each", yscale="log")
    errors.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (against_y, errors):
        axes.legend(frameon=False, fontsize="small")
    figure.suptitle(f"{activation.name}′ from its output", fontsize="large")
    return figure


def _largest(at: Array, values: Array, degree: int) -> float:
    """The largest error of the least squares polynomial at points dense at the ends: near the least possible."""
    return float(np.abs(Chebyshev.fit(at, values, degree)(at) - values).max())


def fronts_figure(fits: Mapping[str, Fit]) -> Figure:
    """The fronts of fits, by their names: error against instructions; the chosen row, the paper's, the error floor."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    by_rms = all(fit.rule.by_rms for fit in fits.values())

    def place(*rows: Row) -> tuple[list[int], list[float]]:
        return [row.price.total for row in rows], [row.rms if by_rms else row.pointwise for row in rows]

    for i, (name, fit) in enumerate(fits.items()):
        axes.plot(*place(*fit.front), color=f"C{i}", marker=".", linewidth=1, label=name)
    last = list(fits.values())[-1]
    # A fit that cannot keep the dtype's own rule is chosen by an easier one, and not marked in this picture.
    enough = [fit.best for fit in fits.values() if fit.rule == rule_for(fit.error_floor, fit.max_error)]
    if enough:
        best = min(enough, key=lambda row: row.price.total)
        axes.plot(*place(best), "C3*", markersize=14, label="chosen")
    if last.paper is not None:
        axes.plot(*place(last.paper), "kx", markersize=8, label="the paper's formulas")
    if by_rms:
        axes.axhline(last.error_floor.rms, color="0.5", linestyle=":", label="floor")
    axes.set(xlabel="instructions", ylabel="RMS error" if by_rms else "largest |q − g| in float32", yscale="log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    figure.suptitle(f"{last.activation.name}′ from y in {last.dtype}", fontsize="large")
    return figure
