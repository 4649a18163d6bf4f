"""An autograd.Function of another library that saves a statistic of each row besides what has codes.

Attention saves its log-sum-exp with q and k: backward takes the exponential of decoded logits minus an exact statistic,
so that an error of a logit is a factor of a probability. What a function does with what it saves is not visible; only
of one tensor with its statistics, as a norm saves them, the error stays that of a code.
"""

from types import FrameType
from typing import Any

from torch import Tensor

from kernels import private
from kernels.eager.lineage import Ancestor
from kernels.eager.provenance import RunningCall
from kernels.eager.tensors import is_plain
from kernels.eager.values import Value
from kernels.eager.whole import is_operand
from kernels.methods.every_tensor import STATISTIC

BY_ROWS = "its function also saves a statistic of each row, and may take an exponential of both"


class Custom:
    """What the running autograd.Function has saved so far."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """No function runs."""
        self._args: Any = None  # of the call, which they identify
        self._coded: dict[Value, Ancestor] = {}
        self._statistics = self._integers = False

    def begin(self, frame: FrameType, x: Tensor, saver: RunningCall) -> None:
        """A function saves a tensor, from this frame."""
        applied = private.function_of(frame)
        args = None if applied is None else applied[1]
        if self._args is not args:
            self.clear()
            self._args = args
        if not is_operand(x, saver) and x.is_floating_point() and x.numel() > 1:
            most = max((operand.numel() for operand in saver.operands), default=0)
            self._statistics |= x.numel() * STATISTIC <= most
        self._integers |= not x.is_floating_point() and not x.is_complex() and x.element_size() > 1 and is_plain(x)

    def saves(self, value: Value, x: Tensor, saver: RunningCall) -> None:
        """The tensor has a code."""
        self._coded[value] = Ancestor.of(x, saver.name)

    def to_keep(self) -> dict[Value, Ancestor]:
        """What must be exact, as by now is known."""
        return self._coded if self._statistics and len(self._coded) + self._integers > 1 else {}
