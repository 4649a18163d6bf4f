"""Nested forward AD in eager code: a mode in which chains of element-wise operations keep their derivative alone.

Every operation runs as it would, and has its ordinary node in autograd's graph. A record goes along at the node of each
tensor of a chain: which source it has, and what autograd keeps of it so far. When an operation that is not element-wise
takes such a tensor, the derivative is computed by the chain's own backward, the tensor gets a node that holds
it in place of its own, and the chain's nodes die with all that they kept. In the terms of the paper (Guo et al., IV),
where Y is an element-wise operation, or the tensor it gives, and N any other:

    NN  nothing is done
    NY  a chain begins: a gate is put on its source
    YY  it goes on: the record goes along. (The paper computes the derivative step by step here: that costs the same,
        and is in vain for chains that stay as they are.)
    YN  it ends: the derivative, and the new node, if that keeps less

The tensor is changed in place, and not replaced, so whoever has it sees the same: several consumers, hooks, views.
"""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from kernels.errors import KernelError
from kernels.forward_ad.chains import Place, Record, Source, kept, note, place, record, source_of
from kernels.forward_ad.core import Chain, Failed, backward_order, swept
from kernels.forward_ad.operations import LOOKS, out_of_place

MIN_NUMEL = 1 << 16  # a chain costs 100 to 300 µs of its own, whatever its size
_BYPASSED = (
    "a hook on a tensor within a chain, or a gradient with respect to it, must be asked for before the chain is used;"
    " got a tensor of a chain whose derivative is computed already: ask where it is made, or leave nested_forward_ad"
)
_PLAIN = (Tensor, nn.Parameter, FakeTensor)
_WATCHES = {"register_hook", "retain_grad"}
_USES = {"T", "H", "mT", "mH", "real", "imag"}  # attributes that are operations


class nested_forward_ad(TorchFunctionMode):
    """A context manager for a forward pass, in which chains of element-wise operations keep their derivative alone.

    What runs in it gives what it would give, bit by bit, and the same gradients but for rounding. A chain begins at a
    tensor of at least `min_numel` elements, and keeps one tensor where that is less than autograd keeps of it. It
    cannot be differentiated twice: that raises KernelError.
    """

    def __init__(self, *, min_numel: int = MIN_NUMEL) -> None:
        super().__init__()
        if not isinstance(min_numel, int) or isinstance(min_numel, bool) or min_numel < 0:
            raise KernelError(f"min_numel must be a whole number of 0 or more, got {min_numel!r}")
        self.min_numel = min_numel
        self._sources: WeakValueDictionary[Place, Source] = WeakValueDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _aside():
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "__get__":
            what, attribute = None, func.__self__.__name__
            name = "register_hook" if attribute == "grad_fn" else name if attribute in _USES else "size"
        else:
            what = out_of_place(func, kwargs)
        if name in LOOKS:
            return func(*args, **kwargs)
        tensors = [*_tensors(args), *_tensors(kwargs.values())] if kwargs else [*_tensors(args)]
        packing = _checkpointing()
        if what is not None and not packing and (source := self._source(tensors)) is not None:
            return _grow(what, tensors, source, func(*args, **kwargs))
        if func is torch.autograd.grad or func is Tensor.backward:
            _refuse_bypassed(_tensors([kwargs.get("inputs", args[1:2] if func is torch.autograd.grad else ())]))
        elif name in _WATCHES:
            self._watch(tensors[0])
        else:
            for one in tensors:
                end(one, packing)
        return func(*args, **kwargs)

    def end(self, results: Any) -> Any:
        """The same results; chains among the tensors in them end here."""
        if not _aside():
            packing = _checkpointing()
            for one in tree_leaves(results):
                if isinstance(one, Tensor):
                    end(one, packing)
        return results

    def _source(self, tensors: list[Tensor]) -> Source | None:
        """The one source of what an element-wise operation is given; None where it has several, or is no chain."""
        first, at, source = None, None, None
        for one in tensors:
            if one.requires_grad:
                known = source_of(one)
                here = place(one) if known is None else known.place
                if first is None:
                    first, at, source = one, here, known
                if here != at or not _alike(one, first):
                    return None
        if first is None or at is None or first.numel() < self.min_numel or not _covers(first, tensors):
            return None
        source = source or self._sources.get(at)
        if source is None:
            with torch._C.DisableTorchFunction():
                source = self._sources[at] = Source.of(first)
        return source

    def _watch(self, tensor: Tensor) -> None:
        """A hook is put on a tensor, or its node is looked at: all its gradients are to come by it."""
        if tensor.grad_fn is None and not tensor.requires_grad:
            return
        _refuse_bypassed([tensor])
        it = record(tensor)
        if it is not None and not it.used:
            end(tensor)
        elif it is not None:
            it.watched = True
        source = self._sources.get(place(tensor))
        if source is not None:
            source.watched = True


def _aside() -> bool:
    """Whether others are at work who must not be disturbed, or there is nothing to do."""
    return (  # asked at every operation
        torch.compiler.is_compiling()
        or not torch.is_grad_enabled()
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def _checkpointing() -> bool:
    """Whether activation checkpointing counts what is kept: it has to find the same when it runs forward again."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint"


def _alike(one: Tensor, first: Tensor) -> bool:
    """Whether a tensor is a plain one of real numbers, and like the first."""
    return (
        type(one) in _PLAIN
        and one.shape == first.shape
        and one.device == first.device
        and one.layout == torch.strided
        and one.is_floating_point()
    )


def _covers(first: Tensor, tensors: list[Tensor]) -> bool:
    """Whether nothing is broadcast beyond the first."""
    return all(one is first or (one.dim() <= first.dim() and one.numel() <= first.numel()) for one in tensors)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Those that an operation is given, by themselves or in lists."""
    for one in values:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from _tensors(one)


def _refuse_bypassed(tensors: Iterable[Tensor]) -> None:
    for one in tensors:
        it = record(one)
        if it is not None and it.bypassed:
            raise KernelError(_BYPASSED)


def _grow(what: str, tensors: list[Tensor], source: Source, result: Any) -> Any:
    """The result of an element-wise operation, which goes on with the chain from that source if it can."""
    goes_on = (
        isinstance(result, Tensor)
        and result.requires_grad
        and _alike(result, source.gate)
        and not any(result is one for one in tensors)
        and not result._is_view()
    )
    if goes_on:
        parents = [it for one in tensors if (it := record(one)) is not None]
        sizes: dict[Any, int] = {}
        for parent in parents:
            parent.used = True
            sizes |= parent.kept
        note(result, Record(source, sizes | kept(what, tensors, result, source), parents))
    return result


def end(tensor: Tensor, packing: bool = False) -> None:
    """End the chain at a tensor, if it is of one: give it a node that keeps the derivative alone, if that is less.

    packing: within activation checkpointing, which is not to know.
    """
    it = record(tensor)
    if it is None or it.source is None:
        return
    with torch._C.DisableTorchFunction():
        if not (_saves(it, tensor) and _rewired(it, it.source, tensor, packing)):
            it.close()


def _saves(it: Record, tensor: Tensor) -> bool:
    """Whether the derivative is less than what the chain keeps, and nobody looks at what would be gone."""
    if it.source is None or it.source.watched or tensor._backward_hooks or tensor.retains_grad:
        return False
    own = tensor.untyped_storage()._cdata  # who takes it keeps it
    gain = sum(size for storage, size in it.kept.items() if storage != own)
    return gain > tensor.numel() * it.source.gate.element_size() and not any(one.watched for one in [it, *it.before])


def _rewired(it: Record, source: Source, tensor: Tensor, packing: bool) -> bool:
    """Give the tensor its new node; False, and nothing done, where its chain is none."""
    ones = source.gate.new_ones((), dtype=tensor.dtype).expand(tensor.shape)
    try:
        nodes, targets = backward_order(tensor.grad_fn, source.edge[:2], source.gate.dtype)
    except ValueError:
        return False
    unseen = saved_tensors_hooks(_as_it_is, _as_it_is) if packing else nullcontext()
    with _unsafe_preserve_version_counter(tensor), unseen:
        tensor.detach_()  # nothing but `nodes` holds them now, unless somebody else does
        try:
            Chain.apply(tensor, source.gate, source.tie, swept(nodes, targets, ones))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # what backward needs was changed in place, most likely
            Failed.apply(tensor, source.gate, error.with_traceback(None))
    it.bypass()
    if it.used or it.bypassed:
        note(tensor, Record(None, bypassed=True))
    return True


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
