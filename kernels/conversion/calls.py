"""Activations that are called as functions within a module's forward: found in its code, rerouted as it runs.

The instance gets a `forward` of its own, which runs the class's under a TorchFunctionMode. So any control flow works,
whatever torch.fx can trace of it, and neither the class nor torch is touched.
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
from kernels.conversion.known import DEFAULTS, Known
from kernels.engine.elements import DTYPES
from kernels.errors import KernelError
from kernels.forwarding import Forwarding
from kernels.functional import activation, exporting
from kernels.hooks import saving_hooks
from kernels.methods.compressed import Compressed
from kernels.methods.functions import function_info
from kernels.methods.method import Method
from kernels.validate import kernel_for

torch.fx.wrap("activation")  # in a traced graph it stays one call
_SIGMOIDS = (torch.sigmoid, Tensor.sigmoid, F.sigmoid)
_PRODUCTS = (torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__)


class Act(nn.Module):
    """An activation that is called as a function, by a method; parameters and dtype are those of each call.

    Raises KernelError where the method cannot serve it.
    """

    def __init__(self, known: Known, method: Method) -> None:
        super().__init__()
        if not isinstance(method, Compressed):
            kernel_for(known.function, known.params, **method.arguments())
        self.known, self.method, self.arguments = known, method, method.arguments()
        self.takes = {known.function: dict(known.params)}
        if known.function == "gelu" and _serves(method, "gelu_tanh"):  # by one name in torch
            self.takes["gelu_tanh"] = {}
        # Read beforehand: torch.compile traces what runs.
        self.limits = {name: dict(method.lower_limits(function_info(name))) for name in self.takes}
        self.compressed = method if isinstance(method, Compressed) else None
        self.fixed = method.default_parameters_only

    def forward(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What function(*args, **kwargs) gives. Where there is no kernel for that call, the function itself runs."""
        known = recognise.call(function, args, kwargs)
        input = args[0] if args else kwargs.get("input")
        if known is None or not self.fits(known, input):
            return function(*args, **kwargs)
        if self.compressed is not None:
            return activated(known.function, {**DEFAULTS[known.function], **known.params}, input, self.compressed)
        return activation(known.function, input, **self.arguments, **known.params)

    def fits(self, known: Known, input: Any) -> bool:
        """Whether there is a kernel for a call of `known` with that input."""
        if isinstance(input, Proxy):  # symbolic_trace, whose graph gets one call of ours
            return self.compressed is None and known.params == self.takes.get(known.function)
        if known.function not in self.takes or not isinstance(input, Tensor):
            return False
        if input.dtype not in DTYPES or input.layout != torch.strided:
            return False
        if self.fixed:
            return bool(known.params == self.takes[known.function])
        return all(known.params[name] >= least for name, least in self.limits[known.function].items())

    def extra_repr(self) -> str:
        return ", ".join([self.known.function, *(f"{name}={value!r}" for name, value in self.arguments.items())])


def _serves(method: Method, function: str) -> bool:
    if isinstance(method, Compressed):
        return True
    try:
        kernel_for(function, {}, **method.arguments())
    except KernelError:
        return False
    return True


class Held(Act):
    """An activation that an attribute holds as a function, and that is called as that function is."""

    def __init__(self, function: Any, known: Known, method: Method) -> None:
        super().__init__(known, method)
        self.call: Any = function.func if isinstance(function, partial) else function
        self.keywords = function.keywords if isinstance(function, partial) else {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the function gives."""
        kwargs = {**self.keywords, **kwargs}
        if exporting():  # as Rerouted has it
            return super().forward(self.call, args, kwargs)
        running = _running()
        running.append(self)  # what runs here is not called by a forward around it
        try:
            return super().forward(self.call, args, kwargs)
        finally:
            running.pop()


class Rerouted(Forwarding):
    """Stands for the forward of `module`: functions in `acts`, by the catalogue's names, go to the modules there."""

    def __init__(self, module: nn.Module, acts: dict[str, Act]) -> None:
        super().__init__(module)
        self.acts = acts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if exporting():  # to torch's own operations
            return self.original(*args, **kwargs)
        running = _running()
        running.append(self)
        try:
            with _Route(self):
                return self.original(*args, **kwargs)
        finally:
            running.pop()


class _Running(threading.local):
    def __init__(self) -> None:
        self.stack: list[Rerouted | Held] = []


_eager, _traced = _Running(), list[Rerouted | Held]()


def _running() -> list[Rerouted | Held]:
    """Those whose forward runs in this thread, innermost last: a call belongs to the innermost."""
    return _traced if torch.compiler.is_compiling() else _eager.stack


def _run(act: Act, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an act gives. It is no module of the model, of which torch.fx would ask for the name."""
    traced = any(isinstance(one, Proxy) for one in (*args, *kwargs.values()))
    return (act.forward if traced else act)(function, args, kwargs)


class _Route(TorchFunctionMode):
    def __init__(self, owner: Rerouted) -> None:
        super().__init__()
        self.owner = owner
        self.sigmoid: tuple[Any, Any] | None = None  # the last one's input and output; weakly, where they take memory
        self.versions = (0, 0)
        self.hooks = None if torch.compiler.is_compiling() else saving_hooks()

    def _same_hooks(self) -> bool:
        """Whether tensors are saved as when forward began. If not, a checkpoint began within it: what runs there runs
        again in backward, after forward, when no call is rerouted, and must save the same."""
        return torch.compiler.is_compiling() or self.hooks == saving_hooks()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        running = _running()
        if running and running[-1] is not self.owner:
            return func(*args, **kwargs)
        acts, input = self.owner.acts if self._same_hooks() else {}, args[0] if args else kwargs.get("input")
        if "silu" in acts and (x := self._gated(func, args)) is not None and acts["silu"].fits(Known("silu"), x):
            return _run(acts["silu"], F.silu, (x,), {})
        known = recognise.call(func, args, kwargs)
        act = acts.get(known.called) if known is not None else None
        result = func(*args, **kwargs) if act is None else _run(act, func, args, kwargs)
        if "silu" in acts and func in _SIGMOIDS and isinstance(result, Tensor):
            pair = input, result
            self.sigmoid = pair if torch.compiler.is_compiling() else (ref(input), ref(result))
            self.versions = (0, 0) if torch.compiler.is_compiling() else (input._version, result._version)
        return result

    def _gated(self, func: Any, args: tuple[Any, ...]) -> Tensor | None:
        """x, where x * sigmoid(x) is about to be computed."""
        if func not in _PRODUCTS or self.sigmoid is None or len(args) != 2:
            return None
        x, y = self.sigmoid if torch.compiler.is_compiling() else (one() for one in self.sigmoid)
        one, other = args
        if x is None or y is None or not ((one is x and other is y) or (one is y and other is x)):
            return None
        # Only if both are what they were, and the gradient goes through both, and is not looked at on its way.
        if x.requires_grad != y.requires_grad:
            return None
        if torch.compiler.is_compiling():  # versions are not known; the code has been looked at
            return x
        same = self.versions == (x._version, y._version)
        return x if same and not y._backward_hooks and not y.retains_grad else None
