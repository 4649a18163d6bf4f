"""How far decoded tensors are off: at the weights of now, and as far as training may bring it.

A code's error is a share of the range of its group. A tensor that hardly varies at random weights, as logarithms of
probabilities that are all alike, has a tiny range, and a tiny error, until training makes it vary. So what is foreseen
for a tensor is at least three quarters of what normally distributed values have with as many bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

import torch

from kernels.methods.expected_error import expected_error
from kernels.methods.planned import WIDTHS

# Of the error of normally distributed values: that of values which are uniformly distributed, .73, or behind a ReLU, .76.
LEAST = 0.75


@dataclass
class Decoded:
    """Relative errors ||x' - x|| / ||x|| of decoded tensors, by site and bits.

    Attributes
    ----------
    now, foreseen
        As measured; and as foreseen, which is no less.
    eps
        Of the coarsest dtype of all tensors.
    """

    now: dict[str, dict[int, float]] = field(default_factory=dict)
    foreseen: dict[str, dict[int, float]] = field(default_factory=dict)
    eps: float = 0.0

    def note(self, site: str, bits: int, error: float, dtype: torch.dtype, group: int, rounding: str) -> None:
        """Note an error of a tensor whose codes have groups of so many elements."""
        known = error if isfinite(error) else 0.0
        self.now.setdefault(site, {})[bits] = known
        self.foreseen.setdefault(site, {})[bits] = max(known, LEAST * expected_error(bits, group, rounding))
        self.eps = max(self.eps, torch.finfo(dtype).eps)

    def foreseen_errors(self, errors: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
        """Squared errors of the gradient, by site and bits, with the errors of tensors that are foreseen."""
        return {
            site: {bits: error * self._growth(site) for bits, error in by_bits.items()}
            for site, by_bits in errors.items()
        }

    def _growth(self, site: str) -> float:
        """By how much the square of a tensor's error may grow: as much with any bits, as all are shares of a range."""
        ratios = [self.foreseen[site][bits] / now for bits, now in self.now.get(site, {}).items() if now]
        return min(ratios, default=1.0) ** 2

    def undiminished(self, bits: Mapping[str, int | None]) -> dict[str, float]:
        """The foreseen error of each tensor with codes: that of the gradient if it is neither magnified nor diminished."""
        return {
            site: self.foreseen[site][width]
            for site, width in bits.items()
            if width in WIDTHS and width in self.foreseen.get(site, {})
        }
