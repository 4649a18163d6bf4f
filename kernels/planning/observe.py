"""What a step of training saves, and when: the sites of a model, and the memory that is alive from event to event.

One step runs on fake tensors, which have neither numbers nor memory, with codes of one width at every site. What other
widths would take at each moment follows: a site's bytes count from when it is saved until backward has used it.
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from kernels.eager.encoded import Encoded, Groups
from kernels.eager.forward import InFewBits
from kernels.eager.mode import Compressing
from kernels.eager.tensors import flat
from kernels.errors import KernelError
from kernels.memory.step import Living, Loss, run_step
from kernels.methods.planned import Planned


@dataclass(frozen=True)
class SavedSite:
    """A tensor that is saved, floating-point and large enough for codes.

    Attributes
    ----------
    name
        See `kernels.eager.sites`.
    whole
        Bytes of the tensor.
    per_bit, fixed
        Bytes of its codes for each bit of an element, and besides, of minima and steps.
    born, dead
        The segments of the step, see `Step`, from the first to before the last in which it is kept.
    """

    name: str
    whole: int
    per_bit: int
    fixed: int
    born: int
    dead: int

    def bytes(self, bits: int | None) -> int:
        """That it takes with so many bits; None: as it is."""
        return self.whole if bits is None else bits * self.per_bit + self.fixed


@dataclass(frozen=True)
class Step:
    """One step of training, with codes of `bits` bits at every site.

    Attributes
    ----------
    sites
        In the order in which they are saved.
    bits
        Of each code.
    peaks
        The most bytes that are alive over what was there before, in each segment of the step; a segment ends where a
        site is saved or freed. None at all: they are not known.
    backward
        The first segment after the model's forward pass: of the loss, and then of the backward pass.
    kept
        Bytes that are alive when the model's forward pass ends, without its output.
    """

    sites: Sequence[SavedSite]
    bits: int
    peaks: Sequence[int]
    backward: int
    kept: int

    def kept_with(self, bits: Mapping[str, int | None]) -> int:
        """Bytes that are kept for backward with other bits at some sites."""
        return self.kept + sum(self._more(site, bits) for site in self.sites if site.born < self.backward <= site.dead)

    def peak_with(self, bits: Mapping[str, int | None]) -> int | None:
        """The most bytes that are alive with other bits at some sites; None: it is not known."""
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
    """Notes the most bytes alive between two events."""

    def __init__(self) -> None:
        super().__init__()
        self.peaks: list[int] = []
        self._site: dict[int, tuple[str, int, int, int]] = {}
        self._lives: dict[int, list[int]] = {}

    def event(self) -> int:
        """End a segment; which one begins."""
        self.peaks.append(self.peak)
        self.peak = self.now
        return len(self.peaks)

    def saved(self, name: str, x: Tensor, code: Groups, bits: int) -> None:
        """Take a site down, whose code lives from now on."""
        planes, *rest = (tensor.nbytes for tensor in code.parts())
        key = len(self._site)
        self._site[key] = name, flat(x).nbytes, planes // bits, sum(rest)
        self._lives[key] = [self.event(), -1]
        weakref.finalize(code, self._freed, key)

    def _freed(self, key: int) -> None:
        self._lives[key][1] = self.event()

    def sites(self) -> list[SavedSite]:
        """All of them, once the step is over."""
        last = len(self.peaks)
        lives = [(born, last if dead < 0 else dead) for born, dead in self._lives.values()]
        return [SavedSite(*site, *life) for site, life in zip(self._site.values(), lives, strict=True)]


class _Noting(Compressing):
    """Tells a history what it codes."""

    history: _History

    def _approximated(self, x: Tensor, kind: type[Groups], site: str) -> Encoded:
        code = super()._approximated(x, kind, site)
        if not isinstance(code, Groups):
            raise KernelError(f"every site must have codes to be observed, got {site} without; report this")
        self.history.saved(site, x, code, self.method.bits)
        return code


class _Noted(InFewBits):
    """Stands for the forward of a model while it is observed."""

    def __init__(self, module: nn.Module, bits: int, history: _History) -> None:
        super().__init__(module, Planned(bits))
        self._history = history

    def mode(self, *given: Any) -> Compressing:
        noting = _Noting(*given)
        noting.history = self._history
        return noting


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
    """A step of the model, which is left as it was.

    Parameters
    ----------
    model, args, kwargs
        The model, and what it is called with.
    loss, targets
        As of `kernels.memory.step.differentiated`.
    bits
        Of the codes.
    training
        Whether to run all modules in training mode.

    Raises
    ------
    KernelError
        For a model that cannot run on fake tensors, or whose output has no gradient.
    """
    history, halves = _History(), list[tuple[int, int]]()

    def half(results: list[Tensor]) -> None:
        halves.append((history.event(), history.now_without(results)))

    run_step(
        history,
        model,
        args,
        kwargs,
        loss=loss,
        targets=targets,
        training=training,
        prepare=lambda copied: _Noted(copied, bits, history).install(),
        between=half,
    )
    history.event()  # ends the last segment
    return Step(history.sites(), bits, tuple(history.peaks), *halves[0])
