"""Intervals in which a function's derivative is one formula: a bit for each element says whether it is inside."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.engine.host import where
from kernels.torch_state import clamp_passes_at_ends

ABOVE_ZERO = ("relu", "leaky_relu", "prelu", "elu", "selu", "rnn_relu", "rnn_relu_cell")
WITHIN_3 = ("hardswish", "hardsigmoid")
# Functions whose ends are arguments: the names of the low and the high end, and their defaults.
ENDS = {
    "relu6": ((), (0.0, 6.0)),
    "hardtanh": (("min_val", "max_val"), (-1.0, 1.0)),
    "threshold": (("threshold",), (0.0, inf)),
    "clamp": (("min", "max"), (-inf, inf)),
    "clip": (("min", "max"), (-inf, inf)),
    "clamp_min": (("min",), (-inf, inf)),
}
CLAMPS = ("clamp", "clip", "clamp_min", "clamp_max")


class Interval(NamedTuple):
    """Numbers from `low` to `high`, with the ends or without."""

    low: float
    high: float
    closed: bool = False

    @staticmethod
    def of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Interval | None":
        """The interval of a function, by its name and arguments; None if it has none, or its ends are tensors."""
        if name in ABOVE_ZERO:
            return Interval(0.0, inf)
        if name in WITHIN_3:
            return Interval(-3.0, 3.0)
        if name == "clamp_max":
            low, high = -inf, kwargs.get("max", args[1] if len(args) > 1 else inf)
        elif name in ENDS:
            names, defaults = ENDS[name]
            explicit = [kwargs.get(key, args[at] if len(args) > at else None) for at, key in enumerate(names, 1)]
            ends = [*explicit, *defaults[len(explicit) :]]
            low, high = (default if end is None else end for end, default in zip(ends, defaults, strict=True))
        else:
            return None
        if not all(isinstance(end, int | float) for end in (low, high)) or (low, high) == (-inf, inf):
            return None
        return Interval(float(low), float(high), name in CLAMPS and clamp_passes_at_ends())

    def has_one_end(self) -> bool:
        """Whether it is all numbers on one side of its end."""
        return self.low == -inf or self.high == inf

    def holds(self, x: Tensor) -> Tensor:
        """Whether each element is inside or NaN."""
        outside = []  # a comparison takes long: not with infinities
        if self.low != -inf:
            outside.append(x < self.low if self.closed else x <= x.new_full((), self.low))
        if self.high != inf:  # without the ends: rounded as results equal to them are
            outside.append(x > self.high if self.closed else x >= x.new_full((), self.high))
        return ~(outside[0] | outside[1]) if len(outside) > 1 else outside[0].logical_not_()

    def put(self, x: Tensor, inside: Tensor) -> Tensor:
        """Numbers moved inside or outside, as `inside` says."""
        low, high = _step(self.low, x.dtype), _step(self.high, x.dtype)
        ends = [self.low, self.high, self.low - low, self.high + high]
        if not self.closed:
            ends = [self.low + low, self.high - high, self.low, self.high]
        most = torch.finfo(x.dtype).max  # an end may be the largest number of the type
        ends = [end if abs(end) == inf else min(max(end, -most), most) for end in ends]
        if self.high == inf:
            outside = x.clamp(max=ends[2])
        elif self.low == -inf:
            outside = x.clamp(min=ends[3])
        else:
            outside = torch.where(x < (self.low + self.high) / 2, x.clamp(max=ends[2]), x.clamp(min=ends[3]))
        return where(inside, x.clamp(ends[0], ends[1]), outside)


def _step(end: float, dtype: torch.dtype) -> float:
    """The distance from an end to a number next to it."""
    return 0.0 if abs(end) == inf else max(abs(end) * torch.finfo(dtype).eps, torch.finfo(dtype).tiny)
