"""Saves exactly what had a code before a later call showed that a code does not do."""

from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from kernels.eager import calls
from kernels.eager.coder import CHECKPOINT, Coder
from kernels.eager.custom import BY_ROWS, Custom
from kernels.eager.encoded import Uncoded
from kernels.eager.lineage import HANDED_OUT, MET, Ancestor, Lineage
from kernels.eager.provenance import Provenance, RunningCall
from kernels.eager.tensors import is_plain, storage_of
from kernels.eager.values import Value
from kernels.eager.whole import is_operand, watch
from kernels.memory.storages import tensors as tensors_within


class Keeper:
    """Follows the calls of one forward pass.

    Attributes
    ----------
    saved_outputs
        The storages of outputs that are saved as they are, by `hand_out`.
    """

    def __init__(self, provenance: Provenance, coder: Coder) -> None:
        self._provenance, self._coder = provenance, coder
        self.lineage, self._custom = Lineage(), Custom()
        self.saved_outputs: set[int] = set()

    def clear(self) -> None:
        """Forget all calls."""
        self.lineage.clear()
        self._custom.clear()

    def saving(self, frame: FrameType, x: Tensor, saver: RunningCall) -> None:
        """A call is about to save a tensor, from this frame."""
        if saver.name.endswith(calls.APPLY):
            self._custom.begin(frame, x, saver)
        else:
            self._custom.clear()

    def coded(self, value: Value, x: Tensor, saver: RunningCall) -> None:
        """What the call saves has a code, or is recomputed."""
        if saver.name == CHECKPOINT:  # it saves arguments, which are not among its operands
            return
        self.lineage.saves(value, x, saver, is_result=not is_operand(x, saver))
        if saver.name.endswith(calls.APPLY):
            self._custom.saves(value, x, saver)

    def saved(self) -> None:
        """The call saved the tensor."""
        self._keep(self._custom.to_keep().items(), BY_ROWS)

    def ended(self, running: RunningCall, result: Any) -> None:
        """A call ended."""
        self._keep(self.lineage.met(running, self._provenance).items(), MET)
        self.lineage.follow(running, result, self._provenance)

    def hand_out(self, output: Any) -> None:
        """Save outputs of forward as they are where backward of the call that made them reads them.

        So are results of sigmoid and the like that outputs were made of, element by element. A loss may divide by them.
        """
        outputs = [x for x in tensors_within(output) if is_plain(x)]
        read = [(value, Ancestor.of(x, value.read)) for value, x in self._provenance.read_of(outputs)]
        self.saved_outputs.update(storage_of(ancestor.tensor) for _, ancestor in read)
        self._keep(read, HANDED_OUT)
        self._keep(self.lineage.handed_out(), HANDED_OUT)

    def _keep(self, needed: Iterable[tuple[Value, Ancestor]], why: str) -> None:
        for value, ancestor in needed:
            if not value.has_code_of(Uncoded) and ancestor.is_unchanged():
                watch(ancestor.tensor, ancestor.name, why)
                with torch.no_grad():
                    value.keep(self._coder.whole(ancestor.tensor))
