"""A step of training, as plans see it: the sites of a model, and the bytes that are alive between events."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from torch import Tensor

from actfit.kernels.memory.step import Living
from actfit.kernels.methods.planned import WIDTHS

TRIES = 8  # steps that `least_peak` observes; the models tried needed at most 3
PART = 8  # Tensors of less than this part of a peak are left in codes: a step takes seconds to observe; our choice.
Widths = Mapping[str, int | None] | int | None  # bits by site, or the same at all; None: whole tensors


@dataclass
class SavedSite:
    """A saved tensor that is floating-point and large enough for codes."""

    name: str  # see `kernels.compression.cut.site_names`
    whole: int  # bytes of the tensor
    per_bit: int  # bytes of its codes for each bit of an element
    fixed: int  # bytes of minima and steps
    born: int  # the first segment of the step (see `Step`) in which it is saved
    dead: int  # the first in which it is free
    # The first and the last segment of each time in which a whole tensor that was decoded from its codes is alive.
    decoded: list[tuple[int, int]] = field(default_factory=list)
    tensor: Any = None  # the same for sites that save the same tensor, as blocks do that read one; None: not known

    def bytes(self, bits: int | None) -> int:
        """Bytes that it takes with `bits` bits; None: as a whole tensor."""
        return self.whole if bits is None else bits * self.per_bit + self.fixed


@dataclass(frozen=True)
class Step:
    """One step of training, with codes of `bits` bits at every site. A segment ends when a site is saved or freed."""

    sites: Sequence[SavedSite]  # in the order in which they are saved
    bits: int
    peaks: Sequence[int]  # the most bytes alive in each segment of the step, besides those from before
    backward: int  # the first segment after the model's forward pass: of the loss, and then of the backward pass
    kept: int  # bytes alive when the model's forward pass ends, without outputs that backward does not need
    operations: int = 0  # of floating-point numbers, in products
    whole: Mapping[str, int] = field(default_factory=dict)  # bytes of what was saved whole, but could have codes

    def everywhere(self, bits: int | None) -> dict[str, int | None]:
        """The same bits at every site; None: whole tensors."""
        return dict.fromkeys([site.name for site in self.sites], bits)

    def kept_with(self, bits: Widths) -> int:
        """Bytes that are saved for backward with other bits at some sites."""
        changes = self._changes(bits)
        return self.kept + sum(more for born, dead, more in changes if born < self.backward <= dead)

    def peak_with(self, bits: Widths) -> int:
        """The most bytes alive with other bits at some sites."""
        return max(self.peaks_with(bits))

    def peaks_with(self, bits: Widths) -> list[int]:
        """The most bytes alive in each segment with other bits at some sites."""
        more = [0] * (len(self.peaks) + 1)
        for born, dead, change in self._changes(bits):
            more[born] += change
            more[dead] -= change
        return [peak + now for peak, now in zip(self.peaks, accumulate(more), strict=False)]

    @cached_property
    def alike(self) -> list[list[int]]:
        """Numbers of sites, together those that save the same tensor until backward: it is there once if it is whole.

        What backward saves, where a block runs again, is there again.
        """
        groups: dict[Any, list[int]] = {}
        for number, site in enumerate(self.sites):
            shares = site.tensor is not None and site.born < self.backward <= site.dead
            groups.setdefault(("tensor", site.tensor) if shares else number, []).append(number)
        return list(groups.values())

    def _changes(self, bits: Widths) -> Iterator[tuple[int, int, int]]:
        """The first segment with other bytes, the first without, and how many more they are."""
        for group in self.alike:
            whole = []
            for site in (self.sites[number] for number in group):
                width = bits.get(site.name, self.bits) if isinstance(bits, Mapping) else bits
                now = site.bytes(self.bits)
                yield site.born, site.dead, (0 if width is None else site.bytes(width)) - now
                whole += [site] if width is None else []
            if whole:
                yield min(site.born for site in whole), max(site.dead for site in whole), whole[0].whole


def least_peak(observed: Callable[[Set[str]], Step], whole: Set[str]) -> Step:
    """The step with the lowest peak that was found, with the narrowest codes at all sites but those that stay whole.

    Backward decodes a tensor as a whole for an operation that does not read it by pieces, and forward encodes it while
    it is whole. If a step's peak is then, as of the logits of a large vocabulary, it is lower without these codes.
    `observed` gives a step, by the names of sites that stay whole; at first these are `whole`.
    """
    step = observed(whole)
    for _ in range(TRIES):
        if not (more := _at_peak(step)):
            break
        tried = observed({*step.whole, *more})
        if tried.peak_with(WIDTHS[0]) >= step.peak_with(WIDTHS[0]):
            break
        step = tried
    return step


def _at_peak(step: Step) -> set[str]:
    """Sites that are whole beside their codes at the peak: just encoded, or decoded. None if they are small."""
    peaks = step.peaks_with(WIDTHS[0])
    peak = peaks.index(max(peaks))
    sites = {
        site.name: site.whole
        for site in step.sites
        if site.born - 1 == peak or any(first <= peak <= last for first, last in site.decoded)
    }
    return set(sites) if PART * sum(sites.values()) >= max(peaks) else set()


class History(Living):
    """Records the most bytes alive between two events, the sites, and tensors that stay whole."""

    def __init__(self) -> None:
        super().__init__()
        self.peaks: list[int] = []
        self.whole: dict[str, int] = {}
        self._sites: list[SavedSite] = []
        self._by_planes: dict[int, SavedSite] = {}  # these by the storages of their codes

    def event(self) -> int:
        """End a segment; gives the number of the next."""
        self.peaks.append(self.peak)
        self.peak = self.now
        return len(self.peaks)

    def saved(self, name: str, x: Tensor, bits: int, code: Sequence[Tensor], until: object) -> None:
        """Record a site of a tensor, whose code is alive from now on as long as `until` is.

        code: bit planes, and what goes with them.
        """
        planes, *rest = code
        storage = self._known[x.untyped_storage()._cdata]
        tensor = storage, x._version, x.storage_offset(), x.shape, x.stride(), x.dtype
        fixed = sum(part.nbytes for part in rest)
        site = SavedSite(name, x.nbytes, planes.nbytes // bits, fixed, self.event(), 0, [], tensor)
        self._sites.append(site)
        address = planes.untyped_storage()._cdata
        self._by_planes[address] = site
        weakref.finalize(planes.untyped_storage(), self._by_planes.pop, address)
        weakref.finalize(until, lambda: setattr(site, "dead", self.event()))

    def decoded(self, planes: Tensor, result: Tensor) -> Tensor:
        """Record that a whole tensor is alive that was decoded from these bit planes; gives it back."""
        site = self._by_planes.get(planes.untyped_storage()._cdata)
        if site is not None:
            times, place, now = site.decoded, len(site.decoded), len(self.peaks)
            times.append((now, now))
            weakref.finalize(result.untyped_storage(), lambda: times.__setitem__(place, (now, len(self.peaks))))
        return result

    def sites(self) -> list[SavedSite]:
        """All sites as they are now, after the step; what is alive then dies with it."""
        last = len(self.peaks)
        return [replace(site, dead=site.dead or last, decoded=[*site.decoded]) for site in self._sites]
