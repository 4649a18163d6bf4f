"""Nested forward AD in eager code: a mode in which chains of element-wise operations save only their derivative.

Every operation runs as it would, and has its ordinary node in autograd's graph. A record goes along at the node of each
tensor of a chain: which source it has, and what autograd saves of it. When an operation that is not element-wise
takes such a tensor, the derivative is computed by the chain's own backward, the tensor gets a node that holds
it in place of its own, and the chain's nodes die with all that they kept. In the terms of the paper (Guo et al., IV),
where Y is an element-wise operation, or the tensor it gives, and N any other:

    NN  nothing is done
    NY  a chain begins: a gate is put on its source
    YY  it goes on: the record goes along. (The paper computes the derivative step by step here: that costs the same,
        and is in vain for chains that stay as they are.)
    YN  it ends: the derivative, and the new node, if that saves less

The tensor is changed in place, and not replaced, so whoever has it sees the same: several consumers, hooks, views.
"""

from collections.abc import Iterable, Iterator
from contextlib import ContextDecorator
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from kernels.errors import KernelError
from kernels.forward_ad.chains import Period, Place, Source, alike, place, record, source_of
from kernels.forward_ad.ends import end, grow
from kernels.forward_ad.operations import LOOKS, out_of_place
from kernels.hooks import saving_hooks

MIN_NUMEL = 1 << 16  # a chain costs 100 to 300 µs of its own, whatever its size
_BYPASSED = (
    "a hook on a tensor within a chain, or a gradient with respect to it, must be asked for before the chain's output"
    " is used; got a tensor of a chain whose derivative is computed already: ask where it is made, or leave"
    " nested_forward_ad"
)
_WATCHES = {"register_hook", "retain_grad"}
_USES = {"T", "H", "mT", "mH", "real", "imag"}  # attributes that are operations


class nested_forward_ad(ContextDecorator, TorchFunctionMode):
    """A context manager and decorator for forward passes: chains of element-wise operations save only a derivative.

    What runs in it gives what it would give, bit by bit, and the same gradients but for rounding. A chain saves one
    tensor where that is less than autograd saves of it.

    Parameters
    ----------
    min_numel
        Elements at least of the tensor that a chain begins at.

    Raises
    ------
    KernelError
        For another `min_numel` than a whole number of 0 or more; in backward, where a chain is differentiated twice.
    """

    def __init__(self, *, min_numel: int = MIN_NUMEL) -> None:
        super().__init__()
        if not isinstance(min_numel, int) or isinstance(min_numel, bool) or min_numel < 0:
            raise KernelError(f"min_numel must be a whole number of 0 or more, got {min_numel!r}")
        self.min_numel = min_numel
        self._periods: list[Period] = []
        self._sources: WeakValueDictionary[Place, Source] = WeakValueDictionary()

    def _recreate_cm(self) -> "nested_forward_ad":
        return nested_forward_ad(min_numel=self.min_numel)  # a decorated function may call itself

    def __enter__(self) -> "nested_forward_ad":
        self._periods.append(Period())
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._periods.pop().over = True
        super().__exit__(*raised)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        name, attribute = getattr(func, "__name__", ""), ""
        if name == "__get__":
            attribute = func.__self__.__name__
        aside = _aside()
        if name in _WATCHES or attribute == "grad_fn":  # with gradients off, too
            with torch._C.DisableTorchFunction():
                _watch(args[0], asked=name in _WATCHES, aside=aside)
        elif not (aside or name in LOOKS or (attribute and attribute not in _USES)):
            with torch._C.DisableTorchFunction():  # modes around this one are to see the operation alone
                growing = self._before(func, args, kwargs)
            result = func(*args, **kwargs)
            if growing is not None:
                with torch._C.DisableTorchFunction():
                    grow(*growing, result)
            return result
        return func(*args, **kwargs)

    def _before(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[str, list[Tensor], Source] | None:
        """End the chains that an operation uses. If a chain goes on with it: what autograd saves, operands, source."""
        tensors = [*_tensors(args), *_tensors(kwargs.values())] if kwargs else [*_tensors(args)]
        what = out_of_place(func, kwargs)
        if what is not None and (source := self._source(tensors)) is not None:
            return what, tensors, source
        if func is torch.autograd.grad:
            _refuse_bypassed(_tensors([kwargs.get("inputs", args[1:2])]))
        elif func is Tensor.backward:
            _refuse_bypassed(_tensors([kwargs.get("inputs", args[4:5])]))
        else:
            for one in tensors:
                end(one)
        return None

    def end(self, results: Any) -> Any:
        """The same results; chains among the tensors in them end here."""
        if not _aside():
            with torch._C.DisableTorchFunction():
                for one in tree_leaves(results):
                    if isinstance(one, Tensor):
                        end(one)
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
                if here != at or not alike(one, first):
                    return None
        if first is None or at is None or first.numel() < self.min_numel or not _covers(first, tensors):
            return None
        source = source or self._sources.get(at)
        if source is None or source.period.over:
            source = self._sources[at] = Source.of(first, self._periods[-1])
        return source


def _watch(tensor: Any, asked: bool, aside: bool) -> None:
    """A hook is put on a tensor, or its node is looked at: all its gradients are to come by it from now on."""
    it = record(tensor) if isinstance(tensor, Tensor) else None
    if it is None:
        return
    if it.bypassed and asked:
        raise KernelError(_BYPASSED)
    if it.used or aside:
        it.watched = True
    else:
        end(tensor)


def _aside() -> bool:
    """Whether others are at work who must not be disturbed, or there is nothing to do."""
    return (  # asked at every operation that is not compiled
        not torch.is_grad_enabled()
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or _checkpointing()
    )


def _checkpointing() -> bool:
    """Whether activation checkpointing counts what is kept: it has to find the same when it runs forward again."""
    hooks = saving_hooks()
    return hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint"


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
