"""Observes what a training step saves, and when: the sites of a model, and the bytes that are alive between events.

One step runs on fake tensors, which have neither values nor memory, with codes of one width at every site. The bytes
with other widths follow from it: those of a site count from when it is saved until backward has used it.
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from kernels.eager.coder import Coder
from kernels.eager.encoded import Encoded, Grouped, Groups
from kernels.eager.forward import InFewBits
from kernels.eager.mode import Compressing
from kernels.eager.tensors import flat, storage_of
from kernels.errors import KernelError
from kernels.memory.step import Living, Loss, run_step
from kernels.methods.every_tensor import EveryTensor
from kernels.methods.planned import Planned


@dataclass(frozen=True)
class SavedSite:
    """A saved tensor that is floating-point and large enough for codes.

    Attributes
    ----------
    name
        See `kernels.eager.sites`.
    whole
        Bytes of the tensor.
    per_bit, fixed
        Bytes of its codes for each bit of an element, and bytes of minima and steps.
    born, dead
        The first segment of the step (see `Step`) in which it is saved, and the first in which it is free.
    """

    name: str
    whole: int
    per_bit: int
    fixed: int
    born: int
    dead: int

    def bytes(self, bits: int | None) -> int:
        """Bytes that it takes with `bits` bits; None: as a whole tensor."""
        return self.whole if bits is None else bits * self.per_bit + self.fixed


@dataclass(frozen=True)
class Step:
    """One step of training, with codes of `bits` bits at every site.

    Attributes
    ----------
    sites
        In the order in which they are saved.
    bits
        Bits of each code.
    peaks
        The most bytes alive in each segment of the step, besides those from before; a segment ends when a site is saved
        or freed. Empty if not known.
    backward
        The first segment after the model's forward pass: of the loss, and then of the backward pass.
    kept
        Bytes alive when the model's forward pass ends, without those outputs that backward does not need.
    operations
        Floating-point operations of products; None if not known.
    """

    sites: Sequence[SavedSite]
    bits: int
    peaks: Sequence[int]
    backward: int
    kept: int
    operations: int | None = None

    def kept_with(self, bits: Mapping[str, int | None]) -> int:
        """Bytes that are saved for backward with other bits at some sites."""
        return self.kept + sum(self._more(site, bits) for site in self.sites if site.born < self.backward <= site.dead)

    def peak_with(self, bits: Mapping[str, int | None]) -> int | None:
        """The most bytes alive with other bits at some sites; None if not known."""
        if not self.peaks:
            return None
        more = [0] * (len(self.peaks) + 1)
        for site in self.sites:
            change = self._more(site, bits)
            more[site.born] += change
            more[site.dead] -= change
        now = most = 0
        for peak, change in zip(self.peaks, more, strict=False):
            now += change
            most = max(most, peak + now)
        return most

    def _more(self, site: SavedSite, bits: Mapping[str, int | None]) -> int:
        return site.bytes(bits.get(site.name, self.bits)) - site.bytes(self.bits)


class _History(Living):
    """Records the most bytes alive between two events, and the sites."""

    def __init__(self) -> None:
        super().__init__()
        self.peaks: list[int] = []
        self._site: dict[int, tuple[str, int, int, int]] = {}
        self._lives: dict[int, list[int]] = {}

    def event(self) -> int:
        """End a segment; gives the number of the next."""
        self.peaks.append(self.peak)
        self.peak = self.now
        return len(self.peaks)

    def saved(self, name: str, x: Tensor, code: Groups, bits: int) -> None:
        """Record a site, whose code is alive from now on."""
        planes, *rest = (tensor.nbytes for tensor in code.parts())
        key = len(self._site)
        self._site[key] = name, flat(x).nbytes, planes // bits, sum(rest)
        self._lives[key] = [self.event(), -1]
        weakref.finalize(code, self._freed, key)

    def _freed(self, key: int) -> None:
        self._lives[key][1] = self.event()

    def sites(self) -> list[SavedSite]:
        """All sites, after the step."""
        last = len(self.peaks)
        lives = [(born, last if dead < 0 else dead) for born, dead in self._lives.values()]
        return [SavedSite(*site, *life) for site, life in zip(self._site.values(), lives, strict=True)]


class _ObservingCoder(Coder):
    """Records in a history what it codes."""

    def __init__(self, method: EveryTensor, history: _History) -> None:
        super().__init__(method)
        self._history = history

    def approximated(self, x: Tensor, kind: Grouped, site: str) -> Encoded:
        """As of the class, and record it."""
        code = super().approximated(x, kind, site)
        if not isinstance(code, Groups):
            raise KernelError(f"every site must have codes to be observed, got {site} without; report this")
        self._history.saved(site, x, code, self.method.bits)
        return code


class _ObservedForward(InFewBits):
    """Replaces the forward of a model while it is observed."""

    def __init__(self, module: nn.Module, bits: int, history: _History) -> None:
        super().__init__(module, Planned(bits))
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
    training
        Whether to run all modules in training mode.

    Raises
    ------
    KernelError
        For a model that cannot run on fake tensors, or whose output has no gradient.
    """
    history, forward_ends, forwards = _History(), list[tuple[int, int]](), list[_ObservedForward]()

    def begin(copied: nn.Module) -> None:
        forwards.append(_ObservedForward(copied, bits, history).install())

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
    return Step(history.sites(), bits, tuple(history.peaks), *forward_ends[0], history.operations)
