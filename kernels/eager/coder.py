"""Which code a saved tensor gets."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels.eager import calls
from kernels.eager.encoded import (
    Bools,
    Drawn,
    Encoded,
    Grouped,
    Groups,
    Logarithms,
    Phases,
    SavedCode,
    Sided,
    TwoNumbers,
    Uncoded,
)
from kernels.eager.outer_hooks import unpack
from kernels.eager.provenance import RunningCall
from kernels.eager.sides import ABOVE_ZERO, MONOTONE, Waiting, is_by_channel, is_like
from kernels.eager.tensors import flat, group_of, is_part
from kernels.eager.watch import Watch
from kernels.eager.whole import is_operand
from kernels.methods.every_tensor import EveryTensor

CHECKPOINT = "checkpoint"


class Coder:
    """Codes of the tensors of one forward pass, by a method; `watch` sees the error of one of them.

    Attributes
    ----------
    outer
        The saved-tensor hooks around this pass, which get the codes; or None.
    """

    def __init__(self, method: EveryTensor, watch: Watch | None = None) -> None:
        self.method, self.outer = method, None
        self._look = None if watch is None else watch.next_pass()
        self._drawn = Drawn() if method.rounding == "stochastic" else None

    def code_of(self, x: Tensor, saver: RunningCall, site: str) -> Encoded:
        """The code of a tensor that a call saves; of some norms' inputs, one that waits for `after_norm`."""
        if x.dtype == torch.bool:
            return Bools(flat(x))
        if not x.is_floating_point() and saver.coding is not None:
            return saver.coding(x)
        if saver.name in calls.DROPOUTS and not is_operand(x, saver):
            return TwoNumbers(flat(x))
        if saver.name in MONOTONE and is_by_channel(x):
            return Waiting(x, site)
        if saver.interval is not None and saver.interval.has_one_end():
            return self.approximated(x, partial(Sided, inside=saver.interval.holds(flat(x))), site)
        if saver.name in calls.PHASES:
            return self.approximated(x, Phases, site)
        logarithms = saver.name in calls.LOG_PROBABILITIES and not is_operand(x, saver)
        return self.approximated(x, Logarithms if logarithms else Groups, site)

    def after_norm(self, waiting: Waiting, result: Any) -> Encoded:
        """The code of a norm's input, which also tells where the result is above 0, if it can."""
        kind: Grouped = Groups
        if self.method.rounding != "stochastic" and self.method.at(waiting.site) and is_like(result, waiting.x):
            kind = partial(Sided, inside=ABOVE_ZERO.holds(flat(result)))
        return self.approximated(waiting.x, kind, waiting.site)

    def whole(self, x: Tensor) -> SavedCode:
        """The tensor itself as a code."""
        return self.saved(Uncoded(flat(x), self.outer is None))

    def saved(self, code: Encoded) -> SavedCode:
        """A code whose tensors the outer hooks have packed, if there are any."""
        packed = [self.packed(tensor) for tensor in code.hand_over()]
        return SavedCode(code, packed, partial(unpack, self.outer))  # bound to nothing that holds decoded tensors

    def packed(self, x: Tensor) -> Any:
        """The tensor for autograd to hold, packed by the outer hooks if there are any."""
        return x.detach() if self.outer is None else self.outer[0](x.detach())

    def approximated(self, x: Tensor, kind: Grouped, site: str) -> Encoded:
        """The code of floating-point numbers."""
        method = self.method.at(site)
        if method is None:
            if is_part(x) or CHECKPOINT in site:  # it would hold its whole storage; a block may change its input
                return Uncoded(flat(x).clone(), counted=False)
            return Uncoded(flat(x), self.outer is None)
        code = kind(flat(x), method, group_of(x), self._drawn)
        if self._look is not None:
            self._look(site, flat(x), code)
        return code
