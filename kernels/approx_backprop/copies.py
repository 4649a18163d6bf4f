"""Approximate copies of tensors: what autograd keeps in their place, and how they are made of it again.

A norm's copy goes along with its result: as an attribute of that tensor. A ReLU that is given such a tensor adds the
bit that tells the sign, and layers that are given one, or what a ReLU made of it, keep what came along. So however
modules are put together, and whoever else uses the tensor, it is kept once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.approx_backprop.how import GROUP, How
from kernels.hooks import saving_hooks
from kernels.packing import plane_bytes


@dataclass(frozen=True)
class Layout:
    """A tensor's shape, whether channels are the last in memory, and how its elements are divided into groups.

    In the order of memory it is [outer, tokens, wide]. A group is of `run` tokens in a row and of one of the `wide`
    features, so that a feature with large numbers takes no digits from its neighbours (see `docs/approx_backprop.md`).
    """

    shape: tuple[int, ...]
    last: bool
    tokens: int
    wide: int

    @staticmethod
    def of(x: Tensor) -> "Layout":
        """That which x, whose second dimension is channels, has or is brought into.

        A group is of places of a channel in an image, or, where images are small and the batch is larger, of the same
        place of a channel in several images.
        """
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        last = x.dim() in formats and not x.is_contiguous() and x.is_contiguous(memory_format=formats[x.dim()])
        count, inner = x.shape[0], prod(x.shape[2:])
        if last:
            return Layout(tuple(x.shape), True, count * inner, x.shape[1])
        if inner >= min(GROUP, count):
            return Layout(tuple(x.shape), False, inner, 1)
        return Layout(tuple(x.shape), False, count, x.shape[1] * inner)

    @staticmethod
    def of_rows(x: Tensor, dims: int = 1) -> "Layout":
        """That of x, whose last dimensions are features, as many as `dims` says; all others are tokens."""
        features = prod(x.shape[x.dim() - dims :])
        return Layout(tuple(x.shape), False, x.numel() // features, features)

    @property
    def run(self) -> int:
        """Tokens of a group: at most GROUP, and as many in each as can be."""
        return -(-self.tokens // -(-self.tokens // GROUP))

    @property
    def group(self) -> tuple[int, int, int]:
        """run, wide and tokens, as the ops take them."""
        return self.run, self.wide, self.tokens

    @property
    def inner(self) -> int:
        """Elements in a row that belong to the same channel; channels are the second dimension."""
        return 1 if self.last else prod(self.shape[2:])

    def bytes_of(self, bits: int) -> int:
        """Of codes with the ends of their groups."""
        count = prod(self.shape)
        return bits * plane_bytes(count) + 4 * (count // self.tokens * -(-self.tokens // GROUP))

    def separates(self, other: "Layout") -> bool:
        """Whether no group mixes features of the other layout of the same tensor."""
        period = prod(other.shape[1:]) if other.wide == 1 else other.wide  # after which features come again
        if self.last != other.last:
            return False
        return self.wide % period == 0 or (self.wide == other.wide == 1 and other.tokens % self.tokens == 0)

    def flat(self, x: Tensor) -> Tensor:
        """In the order of memory."""
        return (x.movedim(1, -1) if self.last else x).contiguous()

    def whole(self, flat: Tensor) -> Tensor:
        """The inverse of `flat`."""
        if not self.last:
            return flat.view(self.shape)
        return flat.view(self.shape[0], *self.shape[2:], self.shape[1]).movedim(-1, 1)


class Kept(NamedTuple):
    """What autograd keeps.

    codes: bit planes, or the whole tensor. least, step: of groups. gain, bias: parameters, of channels or of features.
    signs: a bit plane.
    """

    codes: Tensor
    least: Tensor | None = None
    step: Tensor | None = None
    gain: Tensor | None = None
    bias: Tensor | None = None
    signs: Tensor | None = None


@dataclass(frozen=True)
class Form:
    """How a tensor of a layout and dtype is made of what is kept.

    normed: whether that is of a norm's result. inner: elements in a row that share an entry of gain and bias. slope: of
    a ReLU that followed, below 0, or None.
    """

    how: How
    layout: Layout
    dtype: torch.dtype
    normed: bool = False
    inner: int = 1
    slope: float | None = None

    @property
    def tells_sign(self) -> bool:
        """Whether codes by themselves say what is above 0."""
        return self.normed and self.how.scheme in ("paper", "fused")


@dataclass(frozen=True)
class Copy:
    """A copy of a tensor."""

    form: Form
    kept: Kept

    def rectified(self, slope: float, signs: Tensor | None) -> "Copy":
        """Of what a ReLU makes of the tensor."""
        return Copy(replace(self.form, slope=slope), self.kept._replace(signs=signs))


_stale: list[set[str]] = []  # one for each `watching`


def attach(x: Tensor, copy: Copy) -> Tensor:
    """x, and its copy goes along."""
    if not torch.compiler.is_compiling():
        x._actfit_copy = x._version, saving_hooks(), copy
    elif copy.form.how.trusting:
        x = x.view_as(x)  # Dynamo has attributes on some tensors only
        x._actfit_copy = None, None, copy
    return x


def along(x: Tensor, how: How) -> Copy | None:
    """The copy that goes along with x and is as `how` says, unless x was changed in place since.

    Nor if what saves tensors is another's now: checkpointing computes a region twice, and its input is then another
    tensor, along with which no copy goes; so a copy is not taken into a region, nor out of it.
    """
    found = getattr(x, "_actfit_copy", None)
    if found is None:
        return None
    version, hooks, copy = found
    if torch.compiler.is_compiling():
        unchanged = version is None  # made in this graph
    else:
        unchanged = version == x._version
        for places in () if unchanged or version is None else _stale:
            places.add(copy.form.how.place)
        unchanged = unchanged and hooks == saving_hooks()
    return copy if unchanged and copy.form.how.like(how) else None


@contextmanager
def watching() -> Iterator[set[str]]:
    """The places of layers whose results are seen to be changed in place, and then asked for their copies."""
    found: set[str] = set()
    _stale.append(found)
    try:
        yield found
    finally:
        _stale.pop()
