"""How a tensor lies in memory, and which of its elements share a minimum and a scale."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from kernels.engine.planes import plane_bytes
from kernels.methods.compressed import GROUP


@dataclass(frozen=True)
class MemoryLayout:
    """A tensor's shape, whether channels are the last in memory, and how its elements are divided into groups.

    In the order of memory it is [outer, tokens, wide]. A group is of `run` tokens in a row and of one of the `wide`
    features, so that a feature with large numbers takes no digits from its neighbours (see `docs/approx_backprop.md`).
    """

    shape: tuple[int, ...]
    last: bool
    tokens: int
    wide: int

    @staticmethod
    def of(x: Tensor) -> "MemoryLayout":
        """That which x, whose second dimension is channels, has or is brought into.

        A group is of places of a channel in an image, or, where images are small and the batch is larger, of the same
        place of a channel in several images.
        """
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        last = x.dim() in formats and not x.is_contiguous() and x.is_contiguous(memory_format=formats[x.dim()])
        count, inner = x.shape[0], prod(x.shape[2:])
        if last:
            return MemoryLayout(tuple(x.shape), True, count * inner, x.shape[1])
        if inner >= min(GROUP, count):
            return MemoryLayout(tuple(x.shape), False, inner, 1)
        return MemoryLayout(tuple(x.shape), False, count, x.shape[1] * inner)

    @staticmethod
    def of_rows(x: Tensor, dims: int = 1) -> "MemoryLayout":
        """That of x, whose last dimensions are features, as many as `dims` says; all others are tokens."""
        features = prod(x.shape[x.dim() - dims :])
        return MemoryLayout(tuple(x.shape), False, x.numel() // features, features)

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

    def separates(self, other: "MemoryLayout") -> bool:
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
