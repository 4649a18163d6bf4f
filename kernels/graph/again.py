"""A module that backward runs again: only what it is given is kept, in few bits where there is a method."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from actfit.kernels.compression.forms import SMALLEST, Groups
from actfit.kernels.compression.layout import layout_of
from actfit.kernels.graph.codes import decode, encode
from actfit.kernels.methods.every_tensor import EveryTensor


class Inputs:
    """How the tensors are kept that one call of a module is given; others keep as they are.

    Attributes
    ----------
    smallest
        The least number of elements of a tensor with codes.
    """

    smallest: int = SMALLEST

    def __init__(self, name: str, method: EveryTensor | None) -> None:
        self._name, self.method, self._count = name, method, 0

    def kept(self, x: Tensor) -> Callable[[], Tensor]:
        """A function that gives the tensor, or what its codes decode to."""
        x = x.detach() if not isinstance(x, nn.Parameter) else x
        if self.method is None or not x.is_floating_point() or x.element_size() == 1 or x.numel() < self.smallest:
            return lambda: x
        layout = layout_of(x)
        if isinstance(layout, str):
            return lambda: x
        self._count += 1
        site = f"{self._name}: its input" + f" {self._count}" * (self._count > 1)
        return self.coded(x, site, Groups(self.method.bits, layout))

    def coded(self, x: Tensor, site: str, form: Groups) -> Callable[[], Tensor]:
        """A function that gives what the codes of a site decode to; the tensor itself where a plan has none for it."""
        method = self.method and self.method.at(site)
        if method is None:
            self.made(site, x, None, ())
            return lambda: x
        order, group, shape, dtype = form.layout.order, form.layout.group, tuple(x.shape), x.dtype
        codes = encode(x, order, group, method.bits, method.rounding == "stochastic", False, False)
        self.made(site, x, method.bits, codes)
        planes, minimum, scale = codes
        return lambda: self.decoded(codes, decode(planes, minimum, scale, shape, order, group, dtype, False))

    def made(self, site: str, x: Tensor, bits: int | None, codes: Sequence[Tensor]) -> None:
        """Called with the codes of a tensor; None: it stays whole."""

    def decoded(self, codes: Sequence[Tensor], x: Tensor) -> Tensor:
        """Called with what codes decode to, which it gives back."""
        return x


def run_again(forward: Callable[..., Any], args: Any, kwargs: Any, inputs: Inputs) -> Any:
    """The result of `forward`, which runs again in backward."""
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (inputs.kept(x), x.requires_grad), _given_again):
        # All by position: checkpoint saves only positional arguments by autograd, and so by the hooks; what runs
        # inside it has hooks of its own.
        return checkpoint(_by_name, forward, tuple(kwargs), *args, *kwargs.values(), use_reentrant=False)


def _given_again(kept: tuple[Callable[[], Tensor], bool]) -> Tensor:
    """An input as the first forward pass got it: graphs are captured for inputs with or without a gradient."""
    x = kept[0]()
    return x.requires_grad_() if kept[1] and x.is_leaf else x


def _by_name(forward: Callable[..., Any], names: tuple[str, ...], *given: Any) -> Any:
    positional = len(given) - len(names)
    return forward(*given[:positional], **dict(zip(names, given[positional:], strict=True)))
