"""Puts an engine into the parts of a model that are captured one by one, and takes it out again.

The parts are repeated blocks, and what lies beside them.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, cast

from torch import nn

from actfit.kernels.errors import KernelError
from actfit.kernels.graph.capture import Captured
from actfit.kernels.graph.engine import Engine
from actfit.kernels.head.heads import Head, is_head
from actfit.kernels.memory.measure import has_forward

LISTS = (nn.ModuleList, nn.ModuleDict)  # they are never called


def units(model: nn.Module, leaves: bool, heads: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules to capture; no module is inside another.

    Repeated blocks share one graph, so a deep model is captured as fast as one of its blocks. A model without repeated
    blocks is captured as a whole.

    Parameters
    ----------
    leaves
        Whether single layers beside the blocks are captured, too, as the head of a language model.
    heads
        Whether layers that make logits stand alone: they are not captured with what is around them.
    """
    blocks = _blocks(model)
    inside = {id(inner) for block in blocks for inner in block.modules()}
    alone = blocks | {module for module in model.modules() if heads and id(module) not in inside and is_head(module)}
    if not alone or model in alone:
        if not has_forward(model):
            raise KernelError(
                f"model must have a forward, or repeated blocks that have one, got {type(model).__name__}; give the"
                " model that it is part of"
            )
        yield "", model
        return
    above = {name for name, module in model.named_modules() if any(inner in alone for inner in module.modules())}
    taken: set[int] = set()
    for name, module in model.named_modules():
        parent = name.rpartition(".")[0]
        if id(module) in taken:
            continue
        if module in alone or (
            name not in above and id(module) not in inside and parent in above and _computes(module, leaves)
        ):
            yield name, module
        else:
            continue
        taken |= {id(inner) for inner in module.modules()}


def _blocks(model: nn.Module) -> set[nn.Module]:
    """The outermost modules that have siblings of their own class in a list or a sequence, and parts of their own."""
    blocks: set[nn.Module] = set()
    inside: set[int] = set()
    for module in model.modules():
        if not isinstance(module, (*LISTS, nn.Sequential)) or id(module) in inside:
            continue
        counts = Counter(type(child) for child in module.children())
        for child in module.children():
            if counts[type(child)] > 1 and any(True for _ in child.children()) and not isinstance(child, LISTS):
                blocks.add(child)
                inside |= {id(inner) for inner in child.modules()}
    return blocks


def _computes(module: nn.Module, leaves: bool) -> bool:
    if isinstance(module, (*LISTS, nn.Embedding, nn.Identity)):
        return False
    return leaves or any(True for _ in module.children())


def install(model: nn.Module, engine: Engine, unchanged: Collection[str] = ()) -> list[tuple[str, nn.Module]]:
    """Let an engine capture a model, but these blocks; the names and modules that it changes."""
    found = units(model, engine.method is not None, engine.chunked_loss)
    changed = [(name, module) for name, module in found if name not in unchanged]
    for name, module in changed:
        own: Any = module.__dict__.get("forward")
        if engine.chunked_loss and is_head(module):
            module.forward = Head(cast(nn.Linear, module), name, own)
        else:
            module.forward = Captured(module, name, engine, own)
    return changed


def not_compressed(model: nn.Module) -> None:
    """Raise KernelError for a model of which a part is compressed."""
    for name, module in model.named_modules():
        if isinstance(module.__dict__.get("forward"), Captured | Head):
            which = f"its module {name!r}" if name else "it"
            raise KernelError(f"model must not be compressed already, but {which} is; call remove() of its handle")


def removed(captured: list[tuple[str, nn.Module]]) -> None:
    """Give modules that `install` gave back their own forward."""
    for _, module in captured:
        call = module.__dict__.get("forward")
        if isinstance(call, Captured | Head):
            del module.__dict__["forward"]
            if call.own is not None:
                module.__dict__["forward"] = call.own
