"""Blocks of a model that backward can compute again from their inputs, as `torch.utils.checkpoint` does."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import nn
from torch.utils.checkpoint import checkpoint

from actfit.kernels.memory.measure import has_forward
from actfit.kernels.memory.saved import like

Blocks = Sequence[str]  # names of blocks


class BlockWays(NamedTuple):
    """What is done with blocks."""

    recomputed: Blocks = ()  # those that backward computes again
    unchanged: Blocks = ()  # those that run as stock
    exact: bool = False  # whether no tensor has codes


CAPTURED = BlockWays()  # all blocks are captured, and have codes


def repeated_blocks(model: nn.Module) -> list[str]:
    """Names of the outermost modules that follow others of their class in a list or a sequence, in that order."""
    blocks: list[str] = []
    seen: set[nn.Module] = set()  # the blocks and all modules in them, as a module may have several names
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or module in seen:
            continue
        kinds = [type(child) for child in module]
        for key, child in module.named_children():
            is_block = kinds.count(type(child)) > 1 and any(True for _ in child.children()) and has_forward(child)
            if is_block and seen.isdisjoint(child.modules()):
                seen.update(child.modules())
                blocks.append(f"{name}.{key}" if name else key)
    return blocks


def repeated_modules(model: nn.Module) -> dict[str, list[str]]:
    """Names of modules that end with a number, by the same with *: a plan of 4 layers is none of a model of 6."""
    modules: dict[str, list[str]] = {}
    for name, _ in model.named_modules():
        if (kind := like(name)).endswith("*"):
            modules.setdefault(kind, []).append(name)
    return modules


@contextmanager
def recomputing(model: nn.Module, blocks: Sequence[str]) -> Iterator[None]:
    """Makes backward compute these blocks again while it is entered."""
    modules = [model.get_submodule(name) for name in blocks]
    own = [vars(module).get("forward") for module in modules]
    for module, forward in zip(modules, own, strict=True):
        module.forward = partial(_again, module, forward)  # a copy of the model has its own modules here
    try:
        yield
    finally:
        for module, forward in zip(modules, own, strict=True):
            del module.forward
            if forward is not None:
                module.forward = forward


def _again(module: nn.Module, own: Any, *args: Any, **kwargs: Any) -> Any:
    forward = own or partial(type(module).forward, module)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
