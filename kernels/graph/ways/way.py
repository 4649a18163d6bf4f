"""A way, and the place in a joint graph where it may be taken."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx

from actfit.kernels.engine.elements import dtype_name
from actfit.kernels.errors import KernelError
from actfit.kernels.methods.method import KernelSpec
from actfit.kernels.validate import kernel_for, numbers_for


@dataclass(frozen=True)
class Site:
    """An activation y = f(x) in a joint graph, and its derivative there.

    Attributes
    ----------
    function
        The name of f in the catalogue.
    x, y
        Its input and output.
    grad_y, grad_x
        The gradients.
    inside
        The operations that compute y, and grad_x from grad_y.
    from_output
        Whether PyTorch computes f' from y.
    x_kept, y_kept
        Whether backward reads x or y for something else, too, or forward returns it.
    """

    function: str
    x: fx.Node
    y: fx.Node
    grad_y: fx.Node
    grad_x: fx.Node
    inside: frozenset[fx.Node]
    from_output: bool
    x_kept: bool
    y_kept: bool

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.x.meta["val"].dtype
        return dtype


@dataclass(frozen=True)
class Way(ABC):
    """What forward leaves to backward in place of what PyTorch computes f' from.

    Attributes
    ----------
    method
        Of `actfit.functional`: its kernels run.
    saves
        What crosses into backward.
    error
        Of the gradient.
    """

    method: ClassVar[str]
    saves: ClassVar[str]
    error: ClassVar[str]
    bits: int | None = None

    @classmethod
    @abstractmethod
    def policies(cls) -> dict[str, "Way"]:
        """The names by which users take it, with its values."""

    def refuses(self, site: Site) -> str:
        """Why the site must stay exact, though there is a kernel for it; or ""."""
        return ""

    def kernel(self, site: Site) -> tuple[KernelSpec, list[float]]:
        """The kernel for a site, and the numbers that it takes.

        Raises
        ------
        KernelError
            Where the site must stay exact, with the reason.
        """
        if site.from_output and site.y_kept:
            raise KernelError("the output is kept anyway, and PyTorch takes the derivative from it")
        if site.x_kept:
            raise KernelError("the input is kept anyway, and tells the derivative exactly")
        if reason := self.refuses(site):
            raise KernelError(reason)
        spec, values = kernel_for(site.function, {}, self.method, self.bits)
        numbers = numbers_for(spec, values, site.dtype)
        spec.method.check_dtype(spec.function, dtype_name(site.dtype))
        return spec, numbers
