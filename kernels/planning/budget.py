"""A budget of memory, as users write it; and what is least within it.

It imports no PyTorch: the command checks its words without.
"""

import re
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Literal, get_args

from actfit.kernels.errors import KernelError, shown

if TYPE_CHECKING:
    from actfit.kernels.planning.step import Step, Widths

Goal = Literal["time", "error"]  # what a plan makes least: the time of a step, or the error of the gradient
GOALS: tuple[Goal, ...] = get_args(Goal)

_UNITS = {"": 1, **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}}
_UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)} | {"b": 1}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE)
LEAST = 1024  # bytes: less is a share gone wrong, as 1, or forgotten units, as 24


@dataclass(frozen=True)
class Limits:
    """Bytes that a step must stay within; None: no limit."""

    peak: int | None = None  # alive at once, besides those from before the step; with an optimizer, with these
    kept: int | None = None  # alive when the backward pass begins
    # For messages: what the unchanged model keeps, if `kept` is a share of it; what training holds besides, of the
    # peak; and what the user calls the budget.
    stock: int | None = field(default=None, compare=False)
    held: int = field(default=0, compare=False)
    argument: str = field(default="budget", compare=False)

    def include(self, kept: int, peak: int) -> bool:
        """Whether these bytes are within the limits."""
        return (self.peak is None or peak <= self.peak) and (self.kept is None or kept <= self.kept)

    def hold(self, step: "Step", bits: "Widths") -> bool:
        """Whether a step stays within the limits."""
        return self.include(step.kept_with(bits), step.peak_with(bits))


def check(budget: Any, argument: str = "budget") -> int | float:
    """Bytes as a whole number, or a share as a number between 0 and 1; raises KernelError for anything else.

    argument: what the user calls it.
    """
    if isinstance(budget, str) and (written := _WRITTEN.fullmatch(budget)) and written[2].lower() in _UNITS:
        number, unit = float(written[1]), _UNITS[written[2].lower()]
        if unit == 1 and not written[2] and 0 < number < 1:
            return number
        if number * unit >= LEAST:
            return int(number * unit)
    elif isinstance(budget, float) and 0 < budget < 1:
        return budget
    elif (
        isinstance(budget, int | float)
        and not isinstance(budget, bool)
        and LEAST <= budget < inf
        and budget == int(budget)
    ):
        return int(budget)
    raise KernelError(
        f"{argument} must be bytes at the peak of a step, {LEAST} or more, or a share of what the model keeps for"
        f" backward now, between 0 and 1, got {shown(budget)}; give a share such as 0.4, or bytes such as '24GiB'"
    )


def limits(budget: Any, kept: int, argument: str = "budget") -> Limits:
    """What a budget allows a model that keeps so many bytes now; raises KernelError as `check` does."""
    number = check(budget, argument)
    if isinstance(number, int):
        return Limits(peak=number, argument=argument)
    return Limits(kept=int(number * kept), stock=kept, argument=argument)
