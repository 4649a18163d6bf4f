"""The judge of a finished joint code: its two errors, on cells that the search did not use."""

import math
from dataclasses import dataclass

import numpy as np

from actfit.fitting.activations import Activation
from actfit.fitting.fewbit.judge import WEIGHTED_DIGITS, WEIGHTED_TOLERANCE
from actfit.fitting.joint.plane import Plane
from actfit.fitting.joint.samples import SamplePlane
from actfit.fitting.joint.table import Table
from actfit.fitting.weights import Weight

TOLERANCE = WEIGHTED_TOLERANCE
FINE = 1e-4  # the `spare` of a cell, relative: such cells are far narrower than features that their rules could miss


@dataclass(frozen=True)
class Judged:
    """∫ (f' - q)² w and ∫ (f - y)² w, ∫ f'² w and ∫ f² w, and a bound on the error of the sum of the first two."""

    derivative: float
    output: float
    derivative_whole: float
    output_whole: float
    doubt: float


def errors(activation: Activation, weight: Weight, domain: tuple[float, float], table: Table) -> Judged:
    """The errors of `table`, to `WEIGHTED_DIGITS`: the last ones differ between machines."""
    if weight.samples is not None:
        samples = SamplePlane(activation, 1.0, weight, domain)
        x, mass = samples.x, samples.cells(0.0).moments.mass
        points, doubt = samples.points(x, samples.curve.run_at(x)), samples.doubt
    else:
        plane = Plane(activation, 1.0, weight, domain, independent=True)
        cells = plane.cells(FINE * plane.mass * plane.reach)
        edges = np.unique(np.concatenate([cells.lo, cells.hi, table.borders]))
        x, mass, points = (values.reshape(-1, *values.shape[2:]) for values in plane.nodes(edges[:-1], edges[1:]))
        doubt = plane.doubt
    codes = table.codes(x)
    levels = np.stack([table.derivatives, table.outputs], axis=-1)[codes]
    with np.errstate(over="ignore"):  # levels read from a file may be huge
        errors, wholes = mass @ (points - levels) ** 2, mass @ points**2
    derivative, output, derivative_whole, output_whole = map(_digits, [*errors.tolist(), *wholes.tolist()])
    return Judged(derivative, output, derivative_whole, output_whole, doubt)


def shares(judged: Judged) -> dict[str, float]:
    """Relative root mean square errors, by the names of `Errors`; 0 where the whole is 0."""
    pairs = {
        "derivative_share": (judged.derivative, judged.derivative_whole),
        "output_share": (judged.output, judged.output_whole),
    }
    return {name: math.sqrt(error / whole) if whole else 0.0 for name, (error, whole) in pairs.items()}


def _digits(value: float) -> float:
    return float(f"{value:.{WEIGHTED_DIGITS - 1}e}")
