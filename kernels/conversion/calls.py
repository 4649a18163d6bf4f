"""Activations that are called as functions within a module's forward: found in its code, rerouted as it runs.

The instance gets a `forward` of its own, which runs the class's under a TorchFunctionMode. So any control flow works,
whatever torch.fx can trace of it, and neither the class nor torch is touched.
"""

import dis
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from kernels.conversion import recognise
from kernels.conversion.recognise import Known
from kernels.functional import activation

_SIGMOIDS = (torch.sigmoid, Tensor.sigmoid, F.sigmoid)
_PRODUCTS = (torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__)
_METHODS = ("relu", "sigmoid", "tanh")  # of tensors


def called(module: nn.Module) -> set[str]:
    """The catalogue's names of the activations that the forward of a module's class calls, as its code says."""
    forward = inspect.unwrap(type(module).forward)
    if not isinstance(forward, FunctionType):
        return set()
    found = set(_named(forward.__code__, forward.__globals__))
    if "sigmoid" in found and _multiplies(forward.__code__):
        found.add("silu")  # x * sigmoid(x), perhaps: that is told when it runs
    return found


def _named(code: CodeType, names: Mapping[str, Any]) -> Iterator[str]:
    value: Any = None  # of the expression read so far; a tensor's attribute is not known
    for one in dis.get_instructions(code):
        if one.opname == "LOAD_GLOBAL":
            value = names.get(one.argval)
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if value is None and one.argval in _METHODS:
                yield one.argval
            if value is not _SELF:
                value = getattr(value, one.argval, None) if isinstance(value, ModuleType) else None
        elif one.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):  # some Pythons load two at once
            last = one.argval[-1] if isinstance(one.argval, tuple) else one.argval
            value = _SELF if last == "self" else None
        if (known := recognise.function(value)) is not None:
            yield known.function
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(constant, names)


_SELF = object()  # its attributes are no tensors, or not known to be


def _multiplies(code: CodeType) -> bool:
    return any(one.opname == "BINARY_OP" and one.argrepr == "*" for one in dis.get_instructions(code))


class Act(nn.Module):
    """An activation that is called as a function, with the parameters of that call, and how it remembers."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how

    def forward(self, input: Tensor, known: Known) -> Tensor:
        return activation(known.function, input, **self.how, **known.params)


class Rerouted:
    """Stands for the forward of `module`: functions in `acts`, by the catalogue's names, go to the modules there."""

    def __init__(self, module: nn.Module, acts: dict[str, Act]) -> None:
        self.module, self.acts = module, acts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _running.append(self)
        try:
            with _Route(self):
                return type(self.module).forward(self.module, *args, **kwargs)
        finally:
            _running.pop()

    @property
    def __signature__(self) -> inspect.Signature:
        return recognise.signature_of_forward(self.module)


_running: list[Rerouted] = []  # innermost last: a call belongs to the innermost


class _Route(TorchFunctionMode):
    def __init__(self, owner: Rerouted) -> None:
        super().__init__()
        self.owner = owner
        self.sigmoid: tuple[Any, Any] | None = None  # the last one's input and output, weakly

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _running[-1] is not self.owner:
            return func(*args, **kwargs)
        acts, input = self.owner.acts, args[0] if args else kwargs.get("input")
        if "silu" in acts and (x := self._gated(func, args)) is not None:
            return acts["silu"](x, Known("silu"))
        known = recognise.call(func, args, kwargs)
        act = acts.get(known.function.removesuffix("_tanh")) if known is not None else None
        result = func(*args, **kwargs) if act is None else act(input, known)
        if "silu" in acts and func in _SIGMOIDS and not torch.compiler.is_compiling():
            self.sigmoid = ref(input), ref(result)
        return result

    def _gated(self, func: Any, args: tuple[Any, ...]) -> Tensor | None:
        """x, where x * sigmoid(x) is about to be computed."""
        if func not in _PRODUCTS or self.sigmoid is None or len(args) != 2:
            return None
        x, y = (one() for one in self.sigmoid)
        found = x is not None and y is not None and {id(x), id(y)} == {id(one) for one in args}
        return x if found else None
