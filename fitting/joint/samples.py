"""The curve x -> (f'(x), sqrt(λ) f(x)) at recorded samples of x; each sample is a cell."""

import math

import numpy as np
from numpy.typing import NDArray

from actfit.fitting.activations import Activation
from actfit.fitting.activations.tape import Array
from actfit.fitting.errors import InputError
from actfit.fitting.joint.plane import Cells, Moments, Plane
from actfit.fitting.weights import Weight

HALVINGS = 60  # of the way between two samples: to the last bit of float64


class SamplePlane(Plane):
    """As `Plane`, under a weight of samples; exact but for rounding."""

    def __init__(
        self, activation: Activation, output_weight: float, weight: Weight, domain: tuple[float, float]
    ) -> None:
        self._start(activation, output_weight, weight, domain)
        samples = weight.samples
        if samples is None:
            raise InputError(f"weight must be samples, got {weight.label}; see Plane for densities")
        inside = samples[(domain[0] <= samples) & (samples <= domain[1])]
        self.x, counts = np.unique(inside, return_counts=True)
        values = self.points(self.x, self.curve.run_at(self.x))
        self._span(values)
        none = np.zeros(self.x.size)
        moments = Moments(counts / samples.size, values, none)
        before = np.concatenate([[domain[0]], self.x[:-1]])
        self._cells = Cells(before, self.x, moments, np.zeros_like(values), none)
        self.mass, self.leaps = math.fsum(moments.mass), np.zeros((0, 2))

    def cells(self, spare: float) -> Cells:
        return self._cells

    def intervals(self, borders: Array) -> Moments:
        groups = np.searchsorted(borders, self.x, side="left")
        return self._cells.moments.merged(groups, borders.size + 1)

    def between(self, borders: Array) -> Array:
        """Borders at samples, each moved towards the next sample, to where the curve is as far from both levels.

        They divide the samples as before. Found by bisection; without such a place, the middle of both samples.
        """
        first = np.searchsorted(self.x, borders, side="right") - 1
        lo, hi = self.x[first], self.x[first + 1]
        mean = self.intervals(borders).mean
        across, middle = np.diff(mean, axis=0), (mean[1:] + mean[:-1]) / 2

        def past(x: Array) -> NDArray[np.bool_]:
            result: NDArray[np.bool_] = np.sum((self.points(x, self.curve.run_at(x)) - middle) * across, axis=-1) > 0
            return result

        passed = ~past(lo) & past(hi)
        left, right = lo, hi
        for _ in range(HALVINGS):
            at = left + (right - left) / 2
            beyond = past(at)
            left, right = np.where(beyond, left, at), np.where(beyond, at, right)
        crossings = np.where(passed, left, lo + (hi - lo) / 2)
        return np.where((lo <= crossings) & (crossings < hi) & (crossings > self.domain[0]), crossings, lo)
