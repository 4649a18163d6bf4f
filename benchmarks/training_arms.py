"""The arms of `benchmarks.training`: one training each, alike in all but what its activations keep for backward."""

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.kernels_cases import MODULES, how
from benchmarks.training_actnn import ActNN
from benchmarks.training_data import Data, Text
from benchmarks.training_models import GPT, ResNet, plainly

STOCK, RECOMPUTE = "stock", "recompute"
ARMS = (
    *(STOCK, "invact", "forward-ad"),
    *(f"fewbit-{bits}" for bits in (4, 3, 2, 1)),
    *(f"actnn-{bits}" for bits in (4, 2, 1)),
    RECOMPUTE,
)


def activation(name: str, arm: str) -> nn.Module:
    """The activation of a name, gelu or silu, as an arm remembers it."""
    stock, ours = MODULES[name]
    if arm in (STOCK, RECOMPUTE):
        return stock()
    if arm.startswith("actnn-"):
        return ActNN(name, int(arm.removeprefix("actnn-")))
    return ours(**how(arm))


def model(found: Data, name: str, width: int, layers: int, arm: str) -> nn.Module:
    """The model for these data, on the CPU; its weights come from torch's own generator, the same for all arms."""
    make, call = partial(activation, name, arm), again if arm == RECOMPUTE else plainly
    if isinstance(found, Text):
        return GPT(found.classes, found.context, width, layers, make, call)
    return ResNet(found.classes, width, layers, make, call)


def again(block: nn.Module, x: Tensor) -> Tensor:
    """The block's output; its inside is not kept, but computed anew in backward."""
    if not torch.is_grad_enabled():
        return plainly(block, x)
    contexts: Callable[[], tuple[AbstractContextManager[None], AbstractContextManager[None]]]
    contexts = lambda: (nullcontext(), _still(block))  # noqa: E731 - for its type
    result: Tensor = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    return result


@contextmanager
def _still(block: nn.Module):  # type: ignore[no-untyped-def]
    """Batch norms that leave their averages alone: a batch that is computed twice must count once."""
    norms = [one for one in block.modules() if isinstance(one, nn.BatchNorm2d)]
    momenta = [one.momentum for one in norms]
    for one in norms:
        one.momentum = 0.0
    try:
        yield
    finally:
        for one, momentum in zip(norms, momenta, strict=True):
            one.momentum = momentum
