"""How far decoded tensors are off: at the weights of now, and as far as training may bring it.

A code's error is a share of the range of its group. A tensor that hardly varies at random weights, as logarithms of
probabilities that are all alike, has a tiny range, and a tiny error, until training makes it vary. So what is foreseen
for a tensor is at least three quarters of what normally distributed values have with as many bits. Errors of what a
loss saves grow beside a gradient that gets smaller. And layers of which the gradient hardly depends at random weights,
as attention that is alike everywhere, get their part of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

import torch
from torch import Tensor

from actfit.kernels.methods.expected_error import expected_error
from actfit.kernels.methods.planned import WIDTHS

# Of the error of normally distributed values. Uniformly distributed ones, and those behind a ReLU, have .73 and .76.
LEAST = 0.75
# What a loss saves are no factors of a gradient: its own gradient is their difference with the targets. As a network
# learns, differences get smaller, and errors do not. In small language models the error of cross-entropy's codes grew
# 10 to 20 times beside the gradient in 30 steps, with the tensor's own error as foreseen; other tensors' did not.
LOSSES, OF_LOSSES = ("loss", "cross_entropy", "log_softmax", "kl_div"), 10.0

# Of a tensor's own relative error, the gradient's by it. At random weights it was .004 to .6 in small language models,
# and .13 to .5 after 300 steps: where it was small, it grew up to 40 times.
SHARE = 0.1


def relative_error(decoded: Tensor, exact: Tensor) -> float:
    """||x' - x|| / ||x||; 0 if x is 0."""
    wide = torch.promote_types(exact.dtype, torch.float32)
    x = exact.to(wide)
    off, whole = torch.stack([(decoded.to(wide) - x).square().sum(), x.square().sum()]).tolist()
    return float((off / whole) ** 0.5) if whole else 0.0


@dataclass
class Decoded:
    """Relative errors ||x' - x|| / ||x|| of decoded tensors, by site and bits."""

    now: dict[str, dict[int, float]] = field(default_factory=dict)  # as measured
    foreseen: dict[str, dict[int, float]] = field(default_factory=dict)  # no less
    eps: float = 0.0  # of the coarsest dtype of all tensors

    def note(self, site: str, bits: int, error: float, dtype: torch.dtype, group: int, rounding: str) -> None:
        """Note an error of a tensor whose codes have groups of so many elements."""
        known = error if isfinite(error) else 0.0
        self.now.setdefault(site, {})[bits] = known
        self.foreseen.setdefault(site, {})[bits] = max(known, LEAST * expected_error(bits, group, rounding))
        self.eps = max(self.eps, torch.finfo(dtype).eps)

    def foreseen_errors(self, errors: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
        """Squared errors of the gradient, by site and bits, with the errors of tensors that are foreseen."""
        return {
            site: {bits: error * self._growth(site, by_bits) for bits, error in by_bits.items()}
            for site, by_bits in errors.items()
        }

    def _growth(self, site: str, errors: Mapping[int, float]) -> float:
        """By how much a squared error may grow: as much with any bits, as all are shares of a range."""
        now, foreseen = self.now.get(site, {}), self.foreseen.get(site, {})
        ratios = [foreseen[bits] / error for bits, error in now.items() if error]
        of_loss = OF_LOSSES if any(name in site.rpartition(": ")[2] for name in LOSSES) else 1.0
        shares = [SHARE * error / errors[bits] ** 0.5 for bits, error in foreseen.items() if errors.get(bits)]
        return max(of_loss * min(ratios, default=1.0), min(shares, default=0.0)) ** 2

    def undiminished(self, bits: Mapping[str, int | None]) -> dict[str, float]:
        """The foreseen error of each tensor with codes: the gradient's, if it is neither magnified nor diminished."""
        return {
            site: self.foreseen[site][width]
            for site, width in bits.items()
            if width in WIDTHS and width in self.foreseen.get(site, {})
        }
