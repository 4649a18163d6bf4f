"""A budget of memory, as users write it."""

import re
from math import inf
from typing import Any

from actfit.kernels.errors import KernelError, shown
from actfit.kernels.planning.limits import Limits

_UNITS = {"": 1, **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}}
_UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)} | {"b": 1}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE)
RULE = (
    'budget must be bytes at the peak of a step, as "24GiB" or 25769803776, or a share of what the model keeps for'
    " backward now, as 0.2"
)


def check(budget: Any) -> int | float:
    """Bytes as a whole number, or a share as a number between 0 and 1.

    Raises
    ------
    KernelError
        For anything else.
    """
    if isinstance(budget, str) and (written := _WRITTEN.fullmatch(budget)) and written[2].lower() in _UNITS:
        number, unit = float(written[1]), _UNITS[written[2].lower()]
        if unit == 1 and not written[2] and 0 < number < 1:
            return number
        if number * unit >= 1:
            return int(number * unit)
    elif isinstance(budget, float) and 0 < budget < 1:
        return budget
    elif (
        isinstance(budget, int | float) and not isinstance(budget, bool) and 1 <= budget < inf and budget == int(budget)
    ):
        return int(budget)
    raise KernelError(f"{RULE}, got {shown(budget)}")


def limits(budget: Any, kept: int) -> Limits:
    """What a budget allows a model that keeps so many bytes now; raises KernelError as `check` does."""
    number = check(budget)
    return Limits(peak=number) if isinstance(number, int) else Limits(kept=int(number * kept), stock=kept)
