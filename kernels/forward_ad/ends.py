"""How a chain in eager code goes on, and how it ends."""

from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from kernels.forward_ad.chains import Record, Source, alike, kept, note, record
from kernels.forward_ad.core import CollapsedChain, Failed, backward_order, swept


def grow(what: str, tensors: list[Tensor], source: Source, result: Any) -> None:
    """The result of an element-wise operation goes on with the chain from that source, if it can."""
    known = [it for one in tensors if (it := record(one)) is not None]
    for it in known:
        it.used = True
    goes_on = (
        isinstance(result, Tensor)
        and result.requires_grad
        and not any(result is one for one in tensors)
        and alike(result, source.gate)
        and not result._is_view()
    )
    if goes_on:
        parents = [it for it in known if it.source is not None and it.source.place == source.place]
        note(result, Record(source, kept(what, tensors, result, source), parents))


def end(tensor: Tensor) -> None:
    """End the chain at a tensor, if it is of one: give it a node that saves only the derivative, if that is less."""
    it = record(tensor)
    source = None if it is None else it.open_source
    if it is not None and source is not None and not (_saves(it, source, tensor) and _rewired(it, source, tensor)):
        it.close()


def _saves(it: Record, source: Source, tensor: Tensor) -> bool:
    """Whether the derivative is less than what the chain saves, is as good, and nobody looks at what would be gone."""
    if tensor._backward_hooks or tensor.retains_grad:
        return False
    if source.gate.dtype == torch.float16 and tensor.dtype != torch.float16:  # its range is too small for derivatives
        return False
    own = tensor.untyped_storage()._cdata  # who takes it keeps it
    chain = [it, *it.before]
    sizes = {storage: size for one in chain for storage, size in one.kept.items() if storage != own}
    return sum(sizes.values()) > tensor.numel() * source.gate.element_size() and not any(one.watched for one in chain)


class _Sentinel:
    """Lies at a node, and dies with it."""


def _rewired(it: Record, source: Source, tensor: Tensor) -> bool:
    """Give the tensor its new node; False, and nothing done, where its chain is none."""
    ones = source.gate.new_ones((), dtype=tensor.dtype).expand(tensor.shape)
    node = tensor.grad_fn
    try:
        nodes, targets = backward_order(node, source.edge[:2], source.gate.dtype)
    except ValueError:
        return False
    sentinel = _Sentinel()
    node.metadata[_Sentinel] = sentinel
    held = ref(sentinel)
    del node, sentinel
    with _unsafe_preserve_version_counter(tensor):
        tensor.detach_()  # nothing but `nodes` holds them now, unless somebody else does
        try:
            CollapsedChain.apply(tensor, source.gate, source.anchor, swept(nodes, targets, ones))
        except BaseException as error:
            # What backward needs was changed in place, most likely: so it will say then, as it would have.
            Failed.apply(tensor, source.gate, RuntimeError(str(error)))
            if not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError):
                raise
    it.bypass()
    if it.used or it.bypassed or held() is not None:  # others use it where they cannot be seen
        note(tensor, Record(None, bypassed=True))
    return True
