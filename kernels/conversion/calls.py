"""Activations that are called as functions within a module's forward: found in its code, rerouted as it runs.

The instance gets a `forward` of its own, which runs the class's under a TorchFunctionMode. So any control flow works,
whatever torch.fx can trace of it, and neither the class nor torch is touched.
"""

import dis
import inspect
import threading
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from kernels.conversion import recognise
from kernels.conversion.known import DEFAULTS, LIMITS, Known
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
        how = self.how if self.takes(known) else {"method": "stock"}
        return activation(known.function, input, **how, **known.params)

    def takes(self, known: Known) -> bool:
        """Whether there is such a way to remember for the parameters of this call; else the stock function runs."""
        if self.how["method"] == "fewbit":
            return known.params == DEFAULTS[known.function]
        limits = LIMITS[known.function] if self.how["method"].startswith("invact") else {}
        return all(known.params[name] >= least for name, least in limits.items())


class Rerouted:
    """Stands for the forward of `module`: functions in `acts`, by the catalogue's names, go to the modules there."""

    def __init__(self, module: nn.Module, acts: dict[str, Act]) -> None:
        self.module, self.acts = module, acts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = type(self.module).forward
        if torch.compiler.is_exporting():  # to torch's own operations
            return forward(self.module, *args, **kwargs)
        running = _running()
        running.append(self)
        try:
            with _Route(self):
                return forward(self.module, *args, **kwargs)
        finally:
            running.pop()

    @property
    def __code__(self) -> CodeType:
        code: CodeType = inspect.unwrap(type(self.module).forward).__code__
        return code

    @property
    def __signature__(self) -> inspect.Signature:
        return recognise.signature_of_forward(self.module)


class _Running(threading.local):
    def __init__(self) -> None:
        self.stack: list[Rerouted] = []


_eager, _traced = _Running(), list[Rerouted]()


def _running() -> list[Rerouted]:
    """Those whose forward runs in this thread, innermost last: a call belongs to the innermost."""
    return _traced if torch.compiler.is_compiling() else _eager.stack


class _Route(TorchFunctionMode):
    def __init__(self, owner: Rerouted) -> None:
        super().__init__()
        self.owner = owner
        self.sigmoid: tuple[Any, Any] | None = None  # the last one's input and output; weakly, where they take memory

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _running()[-1] is not self.owner:
            return func(*args, **kwargs)
        acts, input = self.owner.acts, args[0] if args else kwargs.get("input")
        if "silu" in acts and (x := self._gated(func, args)) is not None:
            return acts["silu"](x, Known("silu"))
        known = recognise.call(func, args, kwargs)
        act = acts.get(known.function.removesuffix("_tanh")) if known is not None else None
        result = func(*args, **kwargs) if act is None else act(input, known)
        if "silu" in acts and func in _SIGMOIDS:
            self.sigmoid = (input, result) if torch.compiler.is_compiling() else (ref(input), ref(result))
        return result

    def _gated(self, func: Any, args: tuple[Any, ...]) -> Tensor | None:
        """x, where x * sigmoid(x) is about to be computed."""
        if func not in _PRODUCTS or self.sigmoid is None or len(args) != 2:
            return None
        x, y = self.sigmoid if torch.compiler.is_compiling() else (one() for one in self.sigmoid)
        one, other = args
        found = (one is x and other is y) or (one is y and other is x)
        return x if found and x is not None else None
