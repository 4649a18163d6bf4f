"""The modules of a model that are captured one by one: repeated blocks, and what lies beside them."""

from collections import Counter
from collections.abc import Iterator

from torch import nn

from actfit.kernels.errors import KernelError
from actfit.kernels.head.heads import is_head
from actfit.kernels.memory.measure import has_forward

LISTS = (nn.ModuleList, nn.ModuleDict)  # they are never called


def units(model: nn.Module, leaves: bool, heads: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules to capture; no module is inside another.

    Repeated blocks share one graph, so a deep model is captured as fast as one of its blocks. A model without repeated
    blocks is captured as a whole, or in parts if it has no forward of its own.

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
        if not has_forward(model) and (found := list(parts(model, leaves))):
            yield from found
            return
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


def parts(module: nn.Module, leaves: bool) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules to capture in place of a module that cannot be captured whole; as of `units`."""
    for name, child in module.named_children():
        if not has_forward(child):
            inner = parts(child, leaves)
        else:
            inner = units(child, leaves) if _computes(child, leaves=False) else iter(())
        yield from ((f"{name}.{part}" if part else name, found) for part, found in inner)


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
    if isinstance(module, (*LISTS, nn.Embedding, nn.Identity, nn.RNNBase)):
        return False
    return leaves or any(True for _ in module.children())
