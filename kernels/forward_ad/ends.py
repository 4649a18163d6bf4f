"""How a chain in eager code continues, and how it ends."""

from typing import Any
from weakref import ref

import torch
from torch import Tensor

from kernels import private
from kernels.forward_ad.chains import Record, Source, alike, attach_record, record_of, saved_sizes
from kernels.forward_ad.core import CollapsedChain, Failed, backward_order, derivative_by_nodes


def continue_chain(saved_kind: str, tensors: list[Tensor], source: Source, result: Any) -> None:
    """Continue the chain from `source` with the result of an element-wise operation, if possible."""
    known = [record for tensor in tensors if (record := record_of(tensor)) is not None]
    for record in known:
        record.used = True
    goes_on = (
        isinstance(result, Tensor)
        and result.requires_grad
        and not any(result is tensor for tensor in tensors)
        and alike(result, source.gate)
        and not result._is_view()
    )
    if goes_on:
        parents = [record for record in known if record.source is not None and record.source.place == source.place]
        attach_record(result, Record(source, saved_sizes(saved_kind, tensors, result, source), parents))


def end_chain(tensor: Tensor) -> None:
    """End a tensor's chain, if it is in one: give it a node that saves only the derivative, if that saves bytes."""
    record = record_of(tensor)
    source = None if record is None else record.open_source
    if (
        record is not None
        and source is not None
        and not (_saves_bytes(record, source, tensor) and _replace_node(record, source, tensor))
    ):
        record.close()


def _saves_bytes(last: Record, source: Source, tensor: Tensor) -> bool:
    """Whether the derivative is smaller than what the chain saves, is precise enough, and no hook needs the chain."""
    if tensor._backward_hooks or tensor.retains_grad:
        return False
    if source.gate.dtype == torch.float16 and tensor.dtype != torch.float16:  # its range is too small for derivatives
        return False
    own = tensor.untyped_storage()._cdata  # its consumer saves it anyway
    chain = [last, *last.before]
    sizes = {storage: size for record in chain for storage, size in record.saved.items() if storage != own}
    return sum(sizes.values()) > tensor.numel() * source.gate.element_size() and not any(
        record.watched for record in chain
    )


class _Sentinel:
    """Attached to a node, to see whether the node was freed."""


def _replace_node(last: Record, source: Source, tensor: Tensor) -> bool:
    """Give the tensor its new node; False, with nothing changed, if the chain has a second source."""
    ones = source.gate.new_ones((), dtype=tensor.dtype).expand(tensor.shape)
    node = tensor.grad_fn
    try:
        nodes, targets = backward_order(node, source.edge[:2], source.gate.dtype)
    except ValueError:
        return False
    sentinel = _Sentinel()
    node.metadata[_Sentinel] = sentinel
    sentinel_ref = ref(sentinel)
    del node, sentinel
    with private.preserve_version_counter(tensor):
        tensor.detach_()  # from now on only `nodes` holds the nodes, unless someone else does
        try:
            CollapsedChain.apply(tensor, source.gate, source.anchor, derivative_by_nodes(nodes, targets, ones))
        except BaseException as error:
            # Most likely a saved tensor was changed in place: backward will raise this error, as it would have.
            Failed.apply(tensor, source.gate, RuntimeError(str(error)))
            if not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError):
                raise
    last.bypass()
    if last.used or last.bypassed or sentinel_ref() is not None:  # used elsewhere, unobserved
        attach_record(tensor, Record(None, bypassed=True))
    return True
