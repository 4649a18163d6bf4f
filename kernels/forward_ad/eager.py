"""Nested forward AD in eager code: a mode in which chains of element-wise operations save only their derivative.

Every operation runs unchanged and gets its ordinary node in autograd's graph. A record at the node of each tensor of a
chain holds the chain's source and what autograd saves. When an operation that is not element-wise takes such a tensor,
the chain's own backward computes the derivative, the tensor gets a new node that saves the derivative alone, and the
chain's nodes are freed with all that they saved. In the terms of the paper (Guo et al., IV), where Y is an element-wise
operation or its result, and N any other:

    NN  nothing is done
    NY  a chain begins: its source gets a gate
    YY  it continues: the result gets a record. (The paper computes the derivative step by step here: that costs the
        same, and is in vain for chains that stay unchanged.)
    YN  it ends: the derivative is computed and the node replaced, if that saves bytes

The tensor is changed in place, not replaced, so all who hold it see the same: several consumers, hooks, views.
"""

from collections.abc import Iterable, Iterator
from contextlib import ContextDecorator
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kernels import private
from kernels.errors import KernelError
from kernels.forward_ad.chains import Period, Place, Source, alike, place, record_of, source_of
from kernels.forward_ad.ends import continue_chain, end_chain
from kernels.forward_ad.operations import LOOKS, out_of_place
from kernels.torch_state import saving_hooks

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

    Results in it are the same bit by bit, gradients the same but for rounding. A chain saves one tensor where that is
    less than autograd saves for it.

    Parameters
    ----------
    min_numel
        A chain begins only at a tensor of at least this many elements.

    Raises
    ------
    KernelError
        If `min_numel` is not a whole number of 0 or more; in backward, where a chain is differentiated twice.
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
        inactive = _inactive()
        if name in _WATCHES or attribute == "grad_fn":  # with gradients off, too
            with private.DisableTorchFunction():
                _watch(args[0], asked=name in _WATCHES, inactive=inactive)
        elif not (inactive or name in LOOKS or (attribute and attribute not in _USES)):
            with private.DisableTorchFunction():  # outer modes must see only the operation itself
                growing = self._before(func, args, kwargs)
            result = func(*args, **kwargs)
            if growing is not None:
                with private.DisableTorchFunction():
                    continue_chain(*growing, result)
            return result
        return func(*args, **kwargs)

    def _before(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[str, list[Tensor], Source] | None:
        """The kind of saved tensors, operands and source, if a chain continues; else end the chains of all operands."""
        tensors = [*_tensors(args), *_tensors(kwargs.values())] if kwargs else [*_tensors(args)]
        saved_kind = out_of_place(func, kwargs)
        if saved_kind is not None and (source := self._source(tensors)) is not None:
            return saved_kind, tensors, source
        if func is torch.autograd.grad:
            _refuse_bypassed(_tensors([kwargs.get("inputs", args[1:2])]))
        elif func is Tensor.backward:
            _refuse_bypassed(_tensors([kwargs.get("inputs", args[4:5])]))
        else:
            for tensor in tensors:
                end_chain(tensor)
        return None

    def end(self, results: Any) -> Any:
        """The same results; chains among the tensors in them end here."""
        if not _inactive():
            with private.DisableTorchFunction():
                for tensor in private.tree_leaves(results):
                    if isinstance(tensor, Tensor):
                        end_chain(tensor)
        return results

    def _source(self, tensors: list[Tensor]) -> Source | None:
        """The only source of an element-wise operation's operands; None if there are several, or no chain begins."""
        first, at, source = None, None, None
        for tensor in tensors:
            if tensor.requires_grad:
                known = source_of(tensor)
                here = place(tensor) if known is None else known.place
                if first is None:
                    first, at, source = tensor, here, known
                if here != at or not alike(tensor, first):
                    return None
        if first is None or at is None or first.numel() < self.min_numel or not _covers(first, tensors):
            return None
        source = source or self._sources.get(at)
        if source is None or source.period.over:
            source = self._sources[at] = Source.of(first, self._periods[-1])
        return source


def _watch(tensor: Any, asked: bool, inactive: bool) -> None:
    """A tensor gets a hook, or its node is read: from now on all its gradients must pass through it."""
    record = record_of(tensor) if isinstance(tensor, Tensor) else None
    if record is None:
        return
    if record.bypassed and asked:
        raise KernelError(_BYPASSED)
    if record.used or inactive:
        record.watched = True
    else:
        end_chain(tensor)


def _inactive() -> bool:
    """Whether gradients are off, or a transform, a tracer, forward-mode AD or checkpointing is active."""
    return (  # runs at every operation that is not compiled
        not torch.is_grad_enabled()
        or private.in_transform()
        or private.get_tracing_state() is not None
        or private.in_forward_ad()
        or _checkpointing()
    )


def _checkpointing() -> bool:
    """Whether activation checkpointing is active: it must see the same saved tensors when it runs forward again."""
    hooks = saving_hooks()
    return hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint"


def _covers(first: Tensor, tensors: list[Tensor]) -> bool:
    """Whether no tensor is broadcast beyond the shape of the first."""
    return all(
        tensor is first or (tensor.dim() <= first.dim() and tensor.numel() <= first.numel()) for tensor in tensors
    )


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among an operation's arguments, also those in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _refuse_bypassed(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        record = record_of(tensor)
        if record is not None and record.bypassed:
            raise KernelError(_BYPASSED)
