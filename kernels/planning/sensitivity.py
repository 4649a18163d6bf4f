"""Measures how much codes of a saved tensor change the gradient, for groups of similar tensors.

One forward pass of a few samples saves all tensors whole. Then backward passes run over the same graph; each gets one
group of tensors as decoded from codes of one width. So dropout, routing and statistics are the same in all passes: only
the codes differ.

The gradient is that of the loss, if the model's output has one or one is given; else of a random linear function of the
output, whose gradients have the mean square of the Jacobian's columns.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from actfit.coefficients.progress import silent
from actfit.kernels.errors import KernelError
from actfit.kernels.memory.saved import like
from actfit.kernels.memory.step import Loss, differentiated
from actfit.kernels.methods.every_tensor import SMALLEST
from actfit.kernels.methods.planned import WIDTHS, in_model
from actfit.kernels.planning.decoded import Decoded
from actfit.kernels.planning.noise import Exact, exact_of, smaller_batch
from actfit.kernels.planning.step import Step

Bits = Mapping[str, int | None]  # by site
SiteErrors = Mapping[str, Mapping[int, float]]  # by site and bits: ||g' - g||² / ||g||² of these codes alone


@dataclass
class Trials:
    """The codes that a backward pass gets."""

    rounding: str = "nearest"
    bits: Bits = field(default_factory=dict)  # other sites are whole
    smallest: int = SMALLEST  # the fewest elements with which a tensor has codes
    recomputed: frozenset[str] = frozenset()  # names of modules that backward runs again
    compiles: bool = False  # whether the model is to be compiled by Inductor
    sites: dict[str, int] = field(default_factory=dict)  # elements of all that were saved, by name
    decoded: Decoded = field(default_factory=Decoded)  # errors of the tensors that were decoded
    # What captured the model for trials, by inputs: other trials run its graphs, too.
    engines: dict[Any, Any] = field(default_factory=dict, repr=False)
    # By addresses of marks of calls of captured modules: the mark, the gradients of results without codes on trial, and
    # what backward makes of these.
    exact: dict[int, tuple[Tensor, Sequence[Tensor | None], Sequence[Any]]] = field(default_factory=dict, repr=False)
    modules: list[str] = field(default_factory=list)  # those that share graphs, by number

    def number(self, module: str) -> int:
        """The number of a module that shares a graph with others."""
        if module not in self.modules:
            self.modules.append(module)
        return self.modules.index(module)

    def name(self, site: str, number: Tensor | None = None) -> str:
        """The name of a site in the model; `number`: of the module that it is in, if that shares a graph."""
        if number is None:
            return site
        return in_model(self.modules[int(number)], site)


class Gradients(ABC):
    """The gradient of one batch with any codes: one forward pass, and a backward pass for each set of codes."""

    share: float = 1.0  # of a larger batch that samples are taken of, that this is; 1: there are no other samples

    def __init__(
        self,
        model: nn.Module,
        args: Any,
        kwargs: Any,
        loss: Loss | None,
        trials: Trials,
        targets: Any = None,
        progress: Callable[[str], object] = silent,
    ) -> None:
        self.passes, self._trials, self._progress = 0, trials, progress
        self.sites: Set[str] = trials.sites.keys()  # where tensors were saved
        self.decoded = trials.decoded  # errors of the tensors that backward passes got decoded
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        if not self._weights:
            raise KernelError("model must have parameters that want a gradient for errors to be measured, got none")
        with torch.enable_grad():
            self._losses = differentiated(self._output(model, args, kwargs), loss, targets)
        # For a scalar, as a loss is, its own gradient; for other tensors that of a random linear function.
        self._outer = [torch.randn_like(x) / x.numel() ** 0.5 if x.dim() else torch.ones_like(x) for x in self._losses]
        self.of_loss = all(x.numel() == 1 for x in self._losses)
        self._exact = self._gradient({})
        self._norm = _norm(self._exact)
        if not isfinite(self._norm):
            raise KernelError("the gradient must be finite for errors to be measured, got one with NaN or infinities")

    def error(self, bits: Bits) -> float:
        """||g' - g||² / ||g||² for the gradient g' with these codes, where g is the exact one."""
        parts = zip(self._gradient(bits), self._exact, strict=True)
        difference = _norm(None if a is None or b is None else a.double() - b.double() for a, b in parts)
        return difference / self._norm if self._norm else 0.0

    def excerpt(self) -> Exact:
        """Elements of the exact gradient, to be compared with that of other samples."""
        return exact_of(self._exact, self.share)

    def as_smaller_batch(self, error: float, others: Sequence[Exact]) -> float | None:
        """The share of a batch whose lack makes as much noise as this error; None without a loss or other samples."""
        return smaller_batch(error, self._norm, self.excerpt(), others[-1]) if others and self.of_loss else None

    @abstractmethod
    def _output(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        """The model's output, whose backward passes look up the codes on trial each time that they run."""

    def _gradient(self, bits: Bits) -> list[Tensor | None]:
        self.passes += 1
        self._progress(f"backward pass {self.passes} of samples")
        self._trials.bits = bits
        try:
            return list(
                torch.autograd.grad(self._losses, self._weights, self._outer, retain_graph=True, allow_unused=True)
            )
        except AttributeError as error:
            if "_GeneratorContextManager" not in str(error):  # of torch, where a checkpoint's debug mode runs again
                raise
            raise KernelError(
                "model must let backward run several times for errors to be measured, got a checkpoint in debug mode,"
                " which runs once; leave out debug=True"
            ) from error


def _norm(gradient: Iterable[Tensor | None]) -> float:
    return sum(float(part.double().square().sum()) for part in gradient if part is not None)


def completed(errors: SiteErrors, step: Step) -> dict[str, Mapping[int, float]]:
    """Estimated errors of all sites of a step: as measured, or those of the worst measured site."""
    worst = max(errors.values(), key=lambda by_bits: max(by_bits.values()), default={})
    return {site.name: errors.get(site.name, worst) for site in step.sites}


MEASURED = (2, 4, 8)  # bits; errors of other widths are interpolated by the size of a step


def sensitivities(gradients: Gradients, sites: Sequence[str], passes: int) -> dict[str, dict[int, float]]:
    """The error of the gradient with codes of each width at each site alone, as by `Gradients.error`.

    Similar sites, as those of all layers, share one measurement at each of `MEASURED` bits. If passes are left, bands
    of layers, by the order of sites, are measured apart at the middle one of these; all sites in a band have the same
    error. There are at most so many backward passes, but three for each group of similar sites even if these are more.
    """
    roles: dict[str, list[str]] = {}
    for site in sites:
        roles.setdefault(like_site(site), []).append(site)
    remaining = max(passes - len(MEASURED) * len(roles), 0)
    bands = 1 + remaining // max(sum(len(group) > 1 for group in roles.values()), 1)
    errors: dict[str, dict[int, float]] = {}
    for group in roles.values():
        measured = {bits: gradients.error(dict.fromkeys(group, bits)) for bits in MEASURED}
        parts = [part.tolist() for part in np.array_split(np.array(group), min(bands, len(group)))]
        middle = MEASURED[1]
        alone = [gradients.error(dict.fromkeys(part, middle)) if len(parts) > 1 else measured[middle] for part in parts]
        for part, error in zip(parts, alone, strict=True):
            scale = error / sum(alone) / len(part) if sum(alone) else 0.0
            for site in part:
                errors[site] = {bits: scale * _interpolated(bits, measured) for bits in WIDTHS}
    return errors


def like_site(site: str) -> str:
    """A site's name without the numbers of repeated modules."""
    module, _, function = site.partition(": ")
    return f"{like(module)}: {function}"


def _interpolated(bits: int, measured: Mapping[int, float]) -> float:
    """The error at a width, interpolated between the two nearest measured ones as a power of the size of a step."""
    if bits in measured or not all(measured.values()):
        return measured[max(width for width in measured if width <= bits)]
    steps = np.log([2.0**width - 1 for width in measured])
    return float(np.exp(np.interp(np.log(2.0**bits - 1), steps, np.log(list(measured.values())))))
