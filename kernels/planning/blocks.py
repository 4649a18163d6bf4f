"""The blocks of a model that backward may compute again from their inputs, as `torch.utils.checkpoint` does."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from kernels.eager.forward import Recomputed
from kernels.memory.measure import has_forward


def repeated_blocks(model: nn.Module) -> list[str]:
    """Names of the outermost modules that follow others of their class in a list or a sequence, in that order.

    Not those that count something in forward, as batch norms do their running statistics: it would count twice.
    """
    found: list[str] = []
    seen: set[nn.Module] = set()  # those blocks, and what is in them: a module may have several names
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or module in seen:
            continue
        kinds = [type(child) for child in module]
        for key, child in module.named_children():
            is_block = kinds.count(type(child)) > 1 and any(True for _ in child.children()) and may_run_again(child)
            if is_block and seen.isdisjoint(child.modules()):
                seen.update(child.modules())
                found.append(f"{name}.{key}" if name else key)
    return found


def may_run_again(block: nn.Module) -> bool:
    """Whether a second forward pass does what the first did."""
    counting = (module for module in block.modules() if isinstance(module, _NormBase) and module.track_running_stats)
    return has_forward(block) and not any(counting)


@contextmanager
def recomputing(model: nn.Module, blocks: Sequence[str]) -> Iterator[None]:
    """The model, with these blocks computed again in backward."""
    stands = [Recomputed(model.get_submodule(name)) for name in blocks]
    for stand in stands:
        stand.install()
    try:
        yield
    finally:
        for name, stand in zip(reversed(blocks), reversed(stands), strict=True):
            stand.remove(name)
