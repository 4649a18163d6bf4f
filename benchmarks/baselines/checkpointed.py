"""torch.utils.checkpoint, as a module and of a model's own blocks: backward runs the inner module again."""

from collections.abc import Iterable
from functools import partial

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Checkpointed(nn.Module):
    """A module that backward computes again."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return result


def checkpoint_each(blocks: Iterable[nn.Module]) -> None:
    """Have backward compute each block again, until "forward" is removed from its attributes."""
    for block in blocks:
        vars(block)["forward"] = partial(checkpoint, block.forward, use_reentrant=False)
