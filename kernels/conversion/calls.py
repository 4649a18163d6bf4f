"""Activations that a module's forward calls as functions: found in its code, rerouted as it runs.

The instance gets its own `forward`, which runs that of the class under a TorchFunctionMode. So any control flow works,
also where torch.fx cannot trace it, and neither the class nor torch is changed.
"""

import threading
from functools import partial
from typing import Any
from weakref import ref

import torch
import torch.fx
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from kernels.approx_backprop.layers import activated
from kernels.conversion import recognise
from kernels.conversion.function import DEFAULTS, Function
from kernels.engine.elements import is_plain
from kernels.errors import KernelError
from kernels.forwarding import Forwarding
from kernels.functional import activation
from kernels.methods.compressed import Compressed
from kernels.methods.functions import function_info
from kernels.methods.method import Method
from kernels.private import exporting
from kernels.torch_state import saving_hooks
from kernels.validate import kernel_for

torch.fx.wrap("activation")  # in a traced graph it stays one call
_SIGMOIDS = (torch.sigmoid, Tensor.sigmoid, F.sigmoid)
_PRODUCTS = (torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__)


class CalledFunction(nn.Module):
    """Computes calls of an activation function by a method, with the parameters and dtype of each call.

    Raises KernelError if the method does not support the function.
    """

    def __init__(self, function: Function, method: Method) -> None:
        super().__init__()
        if not isinstance(method, Compressed):
            kernel_for(function.name, function.parameters, **method.arguments())
        self.function, self.method, self.arguments = function, method, method.arguments()
        self.takes = {function.name: dict(function.parameters)}
        if function.name == "gelu" and _serves(method, "gelu_tanh"):  # torch has one name for both
            self.takes["gelu_tanh"] = {}
        # Read beforehand: torch.compile traces what runs.
        self.limits = {name: dict(method.lower_limits(function_info(name))) for name in self.takes}
        self.approx_backprop = method if isinstance(method, Compressed) else None
        self.fixed = method.default_parameters_only

    def forward(self, called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of called(*args, **kwargs); the function itself runs if there is no kernel for this call."""
        function = recognise.call(called, args, kwargs)
        input = args[0] if args else kwargs.get("input")
        if function is None or not self.fits(function, input):
            return called(*args, **kwargs)
        if self.approx_backprop is not None:
            return activated(
                function.name, {**DEFAULTS[function.name], **function.parameters}, input, self.approx_backprop
            )
        return activation(function.name, input, **self.arguments, **function.parameters)

    def fits(self, function: Function, input: Any) -> bool:
        """Whether there is a kernel for a call of the function with that input."""
        if isinstance(input, Proxy):  # under symbolic_trace, which records one call
            return self.approx_backprop is None and function.parameters == self.takes.get(function.name)
        if function.name not in self.takes or not is_plain(input):
            return False
        if self.fixed:
            return bool(function.parameters == self.takes[function.name])
        return all(function.parameters[name] >= limit for name, limit in self.limits[function.name].items())

    def extra_repr(self) -> str:
        return ", ".join([self.function.name, *(f"{name}={value!r}" for name, value in self.arguments.items())])


def _serves(method: Method, function: str) -> bool:
    if isinstance(method, Compressed):
        return True
    try:
        kernel_for(function, {}, **method.arguments())
    except KernelError:
        return False
    return True


class HeldFunction(CalledFunction):
    """Replaces an activation function that a module holds in an attribute; called with the same arguments."""

    def __init__(self, held: Any, function: Function, method: Method) -> None:
        super().__init__(function, method)
        self.call: Any = held.func if isinstance(held, partial) else held
        self.keywords = held.keywords if isinstance(held, partial) else {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        kwargs = {**self.keywords, **kwargs}
        if exporting():  # as in ReroutedForward
            return super().forward(self.call, args, kwargs)
        running = _running()
        running.append(self)  # calls made here do not belong to an enclosing forward
        try:
            return super().forward(self.call, args, kwargs)
        finally:
            running.pop()


class ReroutedForward(Forwarding):
    """Replaces the forward of `module`: calls of torch's functions named in `functions` go to the modules there."""

    def __init__(self, module: nn.Module, functions: dict[str, CalledFunction]) -> None:
        super().__init__(module)
        self.functions = functions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if exporting():  # an exported graph has torch's own operations
            return self.original(*args, **kwargs)
        running = _running()
        running.append(self)
        try:
            with _Rerouting(self):
                return self.original(*args, **kwargs)
        finally:
            running.pop()


class _Running(threading.local):
    def __init__(self) -> None:
        self.stack: list[ReroutedForward | HeldFunction] = []


_eager, _traced = _Running(), list[ReroutedForward | HeldFunction]()


def _running() -> list[ReroutedForward | HeldFunction]:
    """The forwards that run in this thread, innermost last: a call belongs to the innermost."""
    return _traced if torch.compiler.is_compiling() else _eager.stack


def _run(function: CalledFunction, called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The function's result. Under torch.fx `forward` runs directly: `function` is not a submodule of the model."""
    traced = any(isinstance(argument, Proxy) for argument in (*args, *kwargs.values()))
    return (function.forward if traced else function)(called, args, kwargs)


class _Rerouting(TorchFunctionMode):
    def __init__(self, owner: ReroutedForward) -> None:
        super().__init__()
        self.owner = owner
        self.sigmoid: tuple[Any, Any] | None = None  # input and output of the last call; weak references in eager mode
        self.versions = (0, 0)
        self.hooks = None if torch.compiler.is_compiling() else saving_hooks()

    def _same_hooks(self) -> bool:
        """Whether the saved-tensor hooks are those of when forward began. If not, a checkpoint began inside: its code
        runs again in backward, where no call is rerouted, and must save the same tensors both times."""
        return torch.compiler.is_compiling() or self.hooks == saving_hooks()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        running = _running()
        if running and running[-1] is not self.owner:
            return func(*args, **kwargs)
        functions, input = self.owner.functions if self._same_hooks() else {}, args[0] if args else kwargs.get("input")
        silu = functions.get("silu")
        if silu is not None and (x := self._gated(func, args)) is not None and silu.fits(Function("silu"), x):
            return _run(silu, F.silu, (x,), {})
        known = recognise.call(func, args, kwargs)
        function = functions.get(known.torch_name) if known is not None else None
        result = func(*args, **kwargs) if function is None else _run(function, func, args, kwargs)
        if silu is not None and func in _SIGMOIDS and isinstance(result, Tensor):
            pair = input, result
            self.sigmoid = pair if torch.compiler.is_compiling() else (ref(input), ref(result))
            self.versions = (0, 0) if torch.compiler.is_compiling() else (input._version, result._version)
        return result

    def _gated(self, func: Any, args: tuple[Any, ...]) -> Tensor | None:
        """x if the call computes x * sigmoid(x), else None."""
        if func not in _PRODUCTS or self.sigmoid is None or len(args) != 2:
            return None
        x, y = self.sigmoid if torch.compiler.is_compiling() else (reference() for reference in self.sigmoid)
        left, right = args
        if x is None or y is None or not ((left is x and right is y) or (left is y and right is x)):
            return None
        # Only if neither changed in place, the gradient flows through both, and no hook sees the gradient of y.
        if x.requires_grad != y.requires_grad:
            return None
        if torch.compiler.is_compiling():  # versions are unknown; `_multiplies` has checked the code
            return x
        same = self.versions == (x._version, y._version)
        return x if same and not y._backward_hooks and not y.retains_grad else None
