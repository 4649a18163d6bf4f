"""A joint code: borders of x, and for each interval between them a level of f' and one of f."""

from dataclasses import dataclass

import numpy as np

from actfit.fitting.activations.tape import Array
from actfit.fitting.fewbit.curve import Indices


@dataclass(frozen=True)
class Table:
    """The code of x is i where borders[i-1] < x <= borders[i]."""

    borders: Array  # float64 (n - 1,): increasing
    # derivatives, outputs: float64 (n,): by code: the values that stand for f'(x) and f(x) in the backward pass
    derivatives: Array
    outputs: Array

    def codes(self, x: Array) -> Indices:
        """The code of each x."""
        return np.searchsorted(self.borders, x, side="left")
