"""How much the gradient is disturbed by codes of a saved tensor: measured, for groups of like tensors.

One forward pass of a few samples saves all tensors whole. Then backward passes run over the same graph, each of which
is given one group of tensors as codes of one width would give them. So nothing is extrapolated from a width to another,
and dropout, routes and statistics are the same in all of them: what differs is the codes.

The gradient is that of the loss, if the model's output has one or one is given; else of a random linear function of the
output, of whose gradients the mean square is that of the Jacobian's columns.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kernels.eager.encoded import Drawn, Encoded, Groups, Logarithms
from kernels.eager.forward import InFewBits
from kernels.eager.mode import Compressing
from kernels.eager.tensors import flat, group_of
from kernels.errors import KernelError
from kernels.memory.saved import like
from kernels.memory.step import Loss, differentiated
from kernels.methods.every_tensor import SMALLEST
from kernels.methods.planned import WIDTHS, Planned

Bits = Mapping[str, int | None]  # by site
SiteErrors = Mapping[str, Mapping[int, float]]  # by site and bits: ||g' - g||² / ||g||² of these codes alone


class _Trial(Groups):
    """The tensor itself, and what gives it as it would come out of codes."""

    def __init__(self, x: Tensor, decoded: Callable[[Tensor], Tensor]) -> None:
        self._tensors, self._decoded = [flat(x).clone()], decoded

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return self._decoded(tensors[0])


class _TrialOfLogarithms(_Trial, Logarithms):
    """Likewise, where codes would be of logarithms."""


@dataclass
class Trials:
    """The codes that a backward pass is to see.

    Attributes
    ----------
    rounding
        Of all codes.
    bits
        By site; sites that are not in it are seen whole.
    smallest
        Elements of a tensor that would have codes in a whole batch.
    sites
        Elements by the names of all sites that were saved.
    """

    rounding: str = "nearest"
    bits: Bits = field(default_factory=dict)
    smallest: int = SMALLEST
    sites: dict[str, int] = field(default_factory=dict)

    def decoder(self, kind: type[Groups], site: str, group: int) -> Callable[[Tensor], Tensor]:
        """What makes of a tensor that is saved at a site what backward is to see."""
        drawn = Drawn() if self.rounding == "stochastic" else None

        def decoded(x: Tensor) -> Tensor:
            bits = self.bits.get(site)
            if bits is None:
                return x.view(-1)  # another object, whose end is the end of what a backward pass remembers
            code = kind(x, Planned(bits, self.rounding), group, drawn)
            return code.decode(code.hand_over())

        return decoded


class _Trying(Compressing):
    """Saves whole tensors, of which trials are made in backward."""

    trials: Trials

    def _approximated(self, x: Tensor, kind: type[Groups], site: str) -> Encoded:
        self.trials.sites[site] = x.numel()
        trial = _TrialOfLogarithms if kind is Logarithms else _Trial
        return trial(x, self.trials.decoder(kind, site, group_of(x)))


class _Tried(InFewBits):
    """Stands for the forward of a model while codes are tried."""

    def __init__(self, module: nn.Module, trials: Trials) -> None:
        super().__init__(module, Planned())
        self._trials = trials

    def mode(self, *given: Any) -> Compressing:
        self._trying = _Trying(*given)
        self._trying.trials, self._trying.provenance.smallest = self._trials, self._trials.smallest
        return self._trying

    def forget(self) -> None:
        """What the last backward pass decoded."""
        self._trying.forget()


class Gradients:
    """The gradient of one batch, with any codes: one forward pass, and as many backward passes as are asked for."""

    def __init__(
        self,
        model: nn.Module,
        args: Any,
        kwargs: Any,
        loss: Loss | None,
        trials: Trials,
        targets: Any = None,
        progress: Callable[[str], object] | None = None,
    ) -> None:
        self.passes, self._trials, self._progress = 0, trials, progress
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        if not self._weights:
            raise KernelError("model must have parameters that want a gradient for errors to be measured, got none")
        with torch.enable_grad():
            self._losses = differentiated(self._output(model, args, kwargs), loss, targets)
        # Of numbers, as a loss is, their own gradient; of others that of a random linear function.
        self._outer = [torch.randn_like(x) / x.numel() ** 0.5 if x.dim() else torch.ones_like(x) for x in self._losses]
        self._exact = self._gradient({})
        self._norm = _norm(self._exact)
        if not isfinite(self._norm):
            raise KernelError("the gradient must be finite for errors to be measured, got one with NaN or infinities")

    @property
    def sites(self) -> Set[str]:
        """Names of those where tensors were saved."""
        return self._trials.sites.keys()

    def error(self, bits: Bits) -> float:
        """||g' - g||² / ||g||² for the gradient g' with these codes, where g is the exact one."""
        parts = zip(self._gradient(bits), self._exact, strict=True)
        off = sum(float((a.double() - b.double()).square().sum()) for a, b in parts if a is not None and b is not None)
        return off / self._norm if self._norm else 0.0

    def _output(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        """Of the model, in whose backward passes codes are tried."""
        self._stand = _Tried(model, self._trials).install()
        try:
            return model(*args, **kwargs)
        finally:
            self._stand.remove("the model")

    def _try(self, bits: Bits) -> None:
        """Let the next backward pass see these codes."""
        self._trials.bits = bits
        self._stand.forget()

    def _gradient(self, bits: Bits) -> list[Tensor | None]:
        self.passes += 1
        if self._progress is not None:
            self._progress(f"backward pass {self.passes} of samples")
        self._try(bits)
        found = torch.autograd.grad(self._losses, self._weights, self._outer, retain_graph=True, allow_unused=True)
        return list(found)


def _norm(gradient: Iterable[Tensor | None]) -> float:
    return sum(float(part.double().square().sum()) for part in gradient if part is not None)


MEASURED = (2, 4, 8)  # bits; those between and beside follow by the size of a step


def sensitivities(gradients: Gradients, sites: Sequence[str], passes: int) -> dict[str, dict[int, float]]:
    """What codes of each width at each site alone do to the gradient, as `Gradients.error` has it.

    Like sites, as those of all layers, have one measurement at each of `MEASURED` bits. Where passes are left, they are
    measured apart by depth, at the middle one of these; within a band of layers they count alike.

    Parameters
    ----------
    gradients
        Of a batch.
    sites
        In the order in which they are saved.
    passes
        Backward passes, some of which may be left over; there are as many as groups of like sites, times three, even if
        these are more.
    """
    roles: dict[str, list[str]] = {}
    for site in sites:
        roles.setdefault(like_site(site), []).append(site)
    left = max(passes - len(MEASURED) * len(roles), 0)
    bands = 1 + left // max(sum(len(group) > 1 for group in roles.values()), 1)
    found: dict[str, dict[int, float]] = {}
    for group in roles.values():
        measured = {bits: gradients.error(dict.fromkeys(group, bits)) for bits in MEASURED}
        parts = [part.tolist() for part in np.array_split(np.array(group), min(bands, len(group)))]
        middle = MEASURED[1]
        alone = [gradients.error(dict.fromkeys(part, middle)) if len(parts) > 1 else measured[middle] for part in parts]
        for part, error in zip(parts, alone, strict=True):
            scale = error / sum(alone) / len(part) if sum(alone) else 0.0
            for site in part:
                found[site] = {bits: scale * _at(bits, measured) for bits in WIDTHS}
    return found


def like_site(site: str) -> str:
    """A site's name without the numbers of repeated modules."""
    module, _, function = site.partition(": ")
    return f"{like(module)}: {function}"


def _at(bits: int, measured: Mapping[int, float]) -> float:
    """The error at a width, between the two nearest that were measured by powers of the size of a step."""
    if bits in measured:
        return measured[bits]
    low = max(width for width in measured if width < bits)
    high = min(width for width in measured if width > bits)
    if not measured[low] or not measured[high]:
        return measured[low]
    below, here, above = (np.log(2.0**width - 1) for width in (low, bits, high))
    share = (here - below) / (above - below)
    return float(np.exp((1 - share) * np.log(measured[low]) + share * np.log(measured[high])))
