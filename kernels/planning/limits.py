"""Bytes that a step of training must stay within."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actfit.kernels.planning.step import Step


@dataclass(frozen=True)
class Limits:
    """Bytes that a step must stay within; None: no limit.

    Attributes
    ----------
    peak
        Alive at once, besides those from before the step; with an optimizer, with these.
    kept
        Alive when the backward pass begins.
    stock
        What the unchanged model keeps, if `kept` is a share of it; for messages.
    held
        What training holds besides, of the peak; for messages.
    argument
        What the user calls the budget; for messages.
    """

    peak: int | None = None
    kept: int | None = None
    stock: int | None = field(default=None, compare=False)
    held: int = field(default=0, compare=False)
    argument: str = field(default="budget", compare=False)

    def include(self, kept: int, peak: int | None) -> bool:
        """Whether these bytes are within the limits."""
        return (self.peak is None or (peak is not None and peak <= self.peak)) and (
            self.kept is None or kept <= self.kept
        )

    def hold(self, step: "Step", bits: Mapping[str, int | None]) -> bool:
        """Whether a step stays within the limits."""
        return self.include(step.kept_with(bits), step.peak_with(bits))
