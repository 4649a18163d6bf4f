"""Observes what a training step saves, and when: the sites of a model, and the bytes that are alive between events.

One step runs on fake tensors, which have neither values nor memory, with codes of one width at every site. The bytes
with other widths follow from it: those of a site count from when it is saved until backward has used it.
"""

from collections.abc import Set
from typing import Any

from torch import Tensor, nn

from kernels.eager.coder import Coder
from kernels.eager.encoded import Encoded, Grouped, Groups
from kernels.eager.forward import InFewBits
from kernels.eager.mode import Compressing
from kernels.eager.tensors import flat, storage_of
from kernels.errors import KernelError
from kernels.memory.step import Loss, run_step
from kernels.methods.every_tensor import EveryTensor
from kernels.methods.planned import Planned
from kernels.planning.step import History, Step


class _ObservingCoder(Coder):
    """Records in a history what it codes."""

    def __init__(self, method: EveryTensor, history: History) -> None:
        super().__init__(method)
        self._history = history

    def approximated(self, x: Tensor, kind: Grouped, site: str) -> Encoded:
        """As of the class, and record it."""
        code = super().approximated(x, kind, site)
        if self.method.at(site) is None:
            self._history.whole[site] = flat(x).nbytes
            return code
        if not isinstance(code, Groups):
            raise KernelError(f"every site must have codes to be observed, got {site} without; report this")
        self._history.saved(site, flat(x).nbytes, self.method.bits, code.parts(), code)
        return code


class _ObservedForward(InFewBits):
    """Replaces the forward of a model while it is observed."""

    def __init__(self, module: nn.Module, method: Planned, history: History) -> None:
        super().__init__(module, method)
        self._history, self.saved_outputs = history, set[int]()

    def mode(self, *given: Any) -> Compressing:
        mode = Compressing(*given, coder=_ObservingCoder(self.options.method, self._history))
        self.saved_outputs = mode.keeper.saved_outputs
        return mode


def observe(
    model: nn.Module,
    args: Any,
    kwargs: Any,
    *,
    loss: Loss | None = None,
    targets: Any = None,
    bits: int = 4,
    whole: Set[str] = frozenset(),
    training: bool = False,
) -> Step:
    """Observe a step of the model, which stays unchanged.

    Parameters
    ----------
    model, args, kwargs
        The model, and what it is called with.
    loss, targets
        As for `kernels.memory.step.differentiated`.
    bits
        Bits of the codes.
    whole
        Names of sites that have none.
    training
        Whether to run all modules in training mode.

    Raises
    ------
    KernelError
        For a model that cannot run on fake tensors, or whose output has no gradient.
    """
    history, forward_ends, forwards = History(), list[tuple[int, int]](), list[_ObservedForward]()
    method = Planned(bits, at_site=dict.fromkeys(whole, None))

    def begin(copied: nn.Module) -> None:
        forwards.append(_ObservedForward(copied, method, history).install())

    def end_forward(results: list[Tensor]) -> None:
        saved = forwards[0].saved_outputs
        others = [x for x in results if storage_of(x) not in saved]
        forward_ends.append((history.event(), history.now_without(others)))

    run_step(
        history,
        model,
        args,
        kwargs,
        loss=loss,
        targets=targets,
        training=training,
        prepare=begin,
        between=end_forward,
    )
    history.event()  # ends the last segment
    return Step(history.sites(), bits, tuple(history.peaks), *forward_ends[0], history.operations, history.whole)
