"""The order of a tensor's elements in memory, and its groups, which share a minimum and a scale."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from kernels.engine.planes import plane_bytes

MAX_GROUP = 64  # tokens at most that share a minimum and a step, two bfloat16 numbers: half a bit an element


@dataclass(frozen=True)
class MemoryLayout:
    """A tensor's shape, whether channels are last in memory, and how its elements are divided into groups.

    In the order of memory the tensor is [outer, tokens, features]. A group is `group_size` consecutive tokens of one
    feature, so a feature with large numbers does not coarsen its neighbours' scale (see `docs/approx_backprop.md`).
    """

    shape: tuple[int, ...]
    last: bool
    tokens: int
    features: int

    @staticmethod
    def of(x: Tensor) -> "MemoryLayout":
        """The layout of x, whose second dimension is channels; a non-contiguous x is copied into it.

        A group is several places of a channel in an image; or, where images are small and the batch is larger, the same
        place of a channel in several images.
        """
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        last = x.dim() in formats and not x.is_contiguous() and x.is_contiguous(memory_format=formats[x.dim()])
        count, inner = x.shape[0], prod(x.shape[2:])
        if last:
            return MemoryLayout(tuple(x.shape), True, count * inner, x.shape[1])
        if inner >= min(MAX_GROUP, count):
            return MemoryLayout(tuple(x.shape), False, inner, 1)
        return MemoryLayout(tuple(x.shape), False, count, x.shape[1] * inner)

    @staticmethod
    def of_rows(x: Tensor, dims: int = 1) -> "MemoryLayout":
        """The layout of x whose last `dims` dimensions are features; all others are tokens."""
        features = prod(x.shape[x.dim() - dims :])
        return MemoryLayout(tuple(x.shape), False, x.numel() // features, features)

    @property
    def group_size(self) -> int:
        """Tokens of a group: at most MAX_GROUP, with groups of equal size as far as possible."""
        return -(-self.tokens // -(-self.tokens // MAX_GROUP))

    @property
    def group(self) -> tuple[int, int, int]:
        """group_size, features and tokens, as the ops take them."""
        return self.group_size, self.features, self.tokens

    @property
    def inner(self) -> int:
        """Number of consecutive elements of one channel; channels are the second dimension."""
        return 1 if self.last else prod(self.shape[2:])

    def bytes_of(self, bits: int) -> int:
        """Bytes of the codes, and of the minimum and scale of each group."""
        count = prod(self.shape)
        return bits * plane_bytes(count) + 4 * (count // self.tokens * -(-self.tokens // MAX_GROUP))

    def separates(self, other: "MemoryLayout") -> bool:
        """Whether no group mixes features of the other layout of the same tensor."""
        period = prod(other.shape[1:]) if other.features == 1 else other.features  # after which the features repeat
        if self.last != other.last:
            return False
        return self.features % period == 0 or (self.features == other.features == 1 and other.tokens % self.tokens == 0)

    def flat(self, x: Tensor) -> Tensor:
        """x in the order of memory."""
        return (x.movedim(1, -1) if self.last else x).contiguous()

    def whole(self, flat: Tensor) -> Tensor:
        """The inverse of `flat`."""
        if not self.last:
            return flat.view(self.shape)
        return flat.view(self.shape[0], *self.shape[2:], self.shape[1]).movedim(-1, 1)
