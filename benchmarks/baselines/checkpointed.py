"""torch.utils.checkpoint, as a module and of a model's own blocks: backward runs the inner module again."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

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
        norms = [norm for norm in block.modules() if isinstance(norm, nn.BatchNorm2d)]
        contexts: dict[str, Any] = {"context_fn": partial(_contexts, norms)} if norms else {}
        vars(block)["forward"] = partial(checkpoint, block.forward, use_reentrant=False, **contexts)


def _contexts(norms: list[nn.BatchNorm2d]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _still(norms)


@contextmanager
def _still(norms: list[nn.BatchNorm2d]) -> Iterator[None]:
    """A context that freezes the averages of batch norms: a batch that is computed twice must count once."""
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
