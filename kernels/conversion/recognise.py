"""Which function of the catalogue a module or a function computes.

torch.nn's modules and torch's functions are recognised by identity, other modules by their values: see
`recognised_numerically`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import modules
from kernels.conversion.function import DEFAULTS, Function
from kernels.conversion.recognised_numerically import recognised_numerically
from kernels.errors import KernelError
from kernels.functional import check_threshold, gelu_name
from kernels.modules import Activation

# Modules of this package by the module of torch.nn that they replace.
REPLACEMENTS: dict[type[nn.Module], type[Activation]] = {
    kind.__bases__[1]: kind
    for kind in vars(modules).values()
    if isinstance(kind, type) and issubclass(kind, Activation) and len(kind.__bases__) == 2
}
# Activations and similar modules that are left alone, and why.
REASONS: dict[type[nn.Module], str] = {
    nn.PReLU: "its slope is learned",
    nn.RReLU: "its slope is drawn at random",
    nn.GLU: "it is gated: kernels.swiglu and its like save less, but must be called instead",
    **dict.fromkeys((nn.Softmax, nn.Softmax2d, nn.Softmin, nn.LogSoftmax), "it is not element-wise"),
    **dict.fromkeys(
        (nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell),
        "its activations are computed inside torch's own recurrent kernel",
    ),
}
_ALONE = ("relu6", "hardsigmoid", "hardswish", "softsign", "logsigmoid", "tanhshrink", "silu", "mish")
# torch's functions: the catalogue's name, and the names of the arguments after the input.
_TORCH: dict[Any, tuple[str, tuple[str, ...]]] = {
    **{getattr(F, name): (name, ()) for name in _ALONE},
    **dict.fromkeys((F.relu, torch.relu, Tensor.relu), ("relu", ())),
    F.leaky_relu: ("leaky_relu", ("negative_slope",)),
    F.threshold: ("threshold", ("threshold", "value")),
    F.hardtanh: ("hardtanh", ("min_val", "max_val")),
    F.hardshrink: ("hardshrink", ("lambd",)),
    F.softshrink: ("softshrink", ("lambd",)),
    **dict.fromkeys((F.sigmoid, torch.sigmoid, Tensor.sigmoid), ("sigmoid", ())),
    **dict.fromkeys((F.tanh, torch.tanh, Tensor.tanh), ("tanh", ())),
    F.softplus: ("softplus", ("beta", "threshold")),
    F.elu: ("elu", ("alpha",)),
    **dict.fromkeys((F.celu, torch.celu), ("celu", ("alpha",))),
    **dict.fromkeys((F.selu, torch.selu), ("selu", ())),
    F.gelu: ("gelu", ("approximate",)),
}


def module(module: nn.Module) -> Function | str | None:
    """The function that a module computes; or the reason why it is left alone; or None: it is not an activation."""
    kind = type(module)
    if kind in REPLACEMENTS:
        try:
            return _of_torch(module)
        except KernelError as error:
            return str(error)
    if reason := REASONS.get(kind):
        return reason
    if kind.__module__.startswith("torch.nn.") or isinstance(module, Activation | torch.jit.ScriptModule):
        return None
    if any(True for items in (module.children(), module.parameters(), module.buffers()) for _ in items):
        return None
    return recognised_numerically(module)


def _of_torch(module: nn.Module) -> Function:
    if isinstance(module, nn.GELU):
        return Function(gelu_name(module.approximate))
    if isinstance(module, nn.Softplus):
        check_threshold(module.threshold)
    ours = REPLACEMENTS[type(module)]
    return Function(ours.function, {name: getattr(module, name) for name in ours.arguments})


def function(value: Any) -> Function | None:
    """The catalogue's function for one of torch's, or for a `functools.partial` of it with keywords only; else None."""
    if isinstance(value, partial):
        return None if value.args else call(value.func, (None,), value.keywords)
    return call(value, (None,), {})


def call(called: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Function | None:
    """The catalogue's function that this call computes; None if it is not one of torch's, or works in place."""
    try:
        signature = _TORCH.get(called)  # up to torch 2.9 Dynamo follows no hash()
    except TypeError:  # an unhashable function of someone else's
        return None
    if signature is None:
        return None
    name, names = signature
    given = args[1 : 1 + len(names)]
    parameters = dict(zip(names[: len(given)], given, strict=True)) | {
        key: value for key, value in kwargs.items() if key != "input"
    }
    if parameters.pop("inplace", False) or len(args) - 1 > len(names) or set(parameters) - set(names):
        return None
    try:
        if name == "gelu":
            return Function(gelu_name(parameters.get("approximate", "none")))
        if name == "softplus":
            check_threshold(parameters.pop("threshold", 20.0))
    except KernelError:
        return None
    return Function(name, {**DEFAULTS[name], **parameters})


def names_in_torch() -> dict[str, str]:
    """The catalogue's names of torch's functions, by their names in torch."""
    return {called.__name__: name for called, (name, _) in _TORCH.items()}


def describe(value: Any) -> str:
    """A module or a function, in a word or two."""
    if isinstance(value, nn.Module):
        return type(value).__name__ + (", in place" if getattr(value, "inplace", False) is True else "")
    if isinstance(value, partial):
        return f"partial({describe(value.func)})"
    owner = "F." if getattr(F, getattr(value, "__name__", ""), None) is value else ""
    return owner + getattr(value, "__name__", repr(value))
