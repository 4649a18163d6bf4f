"""Pictures of fits. The only module here that imports matplotlib; draws on Figure objects, never on pyplot's state."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fitting.errors import InputError
from fitting.fewbit.fit import Fit

FORMATS = (".png", ".svg", ".pdf")
POINTS = 4000


def check_path(path: Path) -> None:
    """Raises `InputError` for a suffix that is not in `FORMATS`."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"plot must end in one of {', '.join(FORMATS)}, got {str(path)!r}")


def fewbit_figure(fit: Fit) -> Figure:
    """f' and the steps above, the error f' - q below, over the domain."""
    lo, hi = fit.domain
    edges = np.concatenate([[lo], fit.steps.borders, [hi]])
    # Two points a hair apart at every border, so that a step is drawn upright.
    x = np.unique(np.concatenate([np.linspace(lo, hi, POINTS), edges, np.nextafter(edges[1:-1], np.inf)]))
    slope, steps = fit.activation.df(x), fit.steps(x)
    figure = Figure(figsize=(7, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    above.plot(x, slope, color="0.35", linewidth=1.2, label=f"{fit.activation.name}'")
    above.stairs(
        fit.steps.levels[fit.steps.codes],
        edges,
        baseline=None,
        color="C0",
        linewidth=1.4,
        label=f"{fit.bits} bits",
    )
    above.set_title(f"{fit.activation.name}': {len(fit.steps.levels)} levels, ∫(f'-q)²w = {fit.error.l2_squared:.4g}")
    above.legend(frameon=False)
    below.plot(x, slope - steps, color="C3", linewidth=0.9)
    below.axhline(0, color="0.6", linewidth=0.6)
    below.set_xlabel("x")
    below.set_ylabel("f' - q")
    below.set_xlim(*_interesting(fit))
    return figure


def _interesting(fit: Fit) -> tuple[float, float]:
    """The part of the domain where something happens: around the borders, if they are far from the ends."""
    (lo, hi), borders = fit.domain, fit.steps.borders
    if not borders.size:
        return lo, hi
    margin = max(1.0, 0.25 * float(borders[-1] - borders[0]))
    return max(lo, float(borders[0]) - margin), min(hi, float(borders[-1]) + margin)


def save(figure: Figure, path: Path) -> None:
    """Write the picture whole or not at all, without a date in it. Raises OSError where it cannot be written."""
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
    try:
        figure.savefig(partial, dpi=150, metadata=metadata)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
