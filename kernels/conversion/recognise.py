"""Which function of the catalogue a module or a function computes.

torch.nn's modules and torch's functions are known by what they are; other modules by what they give: see `by_value`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import modules
from kernels.conversion.by_value import by_value
from kernels.conversion.known import DEFAULTS, Known
from kernels.errors import KernelError
from kernels.functional import check_threshold, gelu_name
from kernels.modules import Remembering

# Modules in place of torch's, by torch's; those of our own making have no namesake there.
REPLACEMENTS: dict[type[nn.Module], type[Remembering]] = {
    one.__bases__[1]: one
    for one in vars(modules).values()
    if isinstance(one, type) and issubclass(one, Remembering) and len(one.__bases__) == 2
}
# Activations and their like that are left alone, and why.
REASONS: dict[type[nn.Module], str] = {
    nn.PReLU: "its slope is learned",
    nn.RReLU: "its slope is drawn at random",
    nn.GLU: "it is gated: kernels.swiglu and its like keep less, but must be called instead",
    **dict.fromkeys((nn.Softmax, nn.Softmax2d, nn.Softmin, nn.LogSoftmax), "it is not element-wise"),
    **dict.fromkeys(
        (nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell),
        "its activations are computed inside torch's own recurrent kernel",
    ),
}
# torch's functions by identity: the catalogue's name, and the names of what may follow the input.
_TORCH: dict[Any, tuple[str, tuple[str, ...]]] = {
    F.relu: ("relu", ()),
    torch.relu: ("relu", ()),
    Tensor.relu: ("relu", ()),
    F.leaky_relu: ("leaky_relu", ("negative_slope",)),
    F.relu6: ("relu6", ()),
    F.threshold: ("threshold", ("threshold", "value")),
    F.hardtanh: ("hardtanh", ("min_val", "max_val")),
    F.hardsigmoid: ("hardsigmoid", ()),
    F.hardshrink: ("hardshrink", ("lambd",)),
    F.softshrink: ("softshrink", ("lambd",)),
    F.hardswish: ("hardswish", ()),
    F.sigmoid: ("sigmoid", ()),
    torch.sigmoid: ("sigmoid", ()),
    Tensor.sigmoid: ("sigmoid", ()),
    F.tanh: ("tanh", ()),
    torch.tanh: ("tanh", ()),
    Tensor.tanh: ("tanh", ()),
    F.softplus: ("softplus", ("beta", "threshold")),
    F.softsign: ("softsign", ()),
    F.logsigmoid: ("logsigmoid", ()),
    F.tanhshrink: ("tanhshrink", ()),
    F.elu: ("elu", ("alpha",)),
    F.celu: ("celu", ("alpha",)),
    torch.celu: ("celu", ("alpha",)),
    F.selu: ("selu", ()),
    torch.selu: ("selu", ()),
    F.gelu: ("gelu", ("approximate",)),
    F.silu: ("silu", ()),
    F.mish: ("mish", ()),
}


def module(one: nn.Module) -> Known | str | None:
    """What a module computes; or, of an activation that is left alone, why; or None: it is no activation."""
    kind = type(one)
    if kind in REPLACEMENTS:
        try:
            return _of_torch(one)
        except KernelError as error:
            return str(error)
    if reason := REASONS.get(kind):
        return reason
    if kind.__module__.startswith("torch.nn.") or isinstance(one, Remembering | torch.jit.ScriptModule):
        return None
    if any(True for _ in one.children()) or any(True for _ in one.parameters()) or any(True for _ in one.buffers()):
        return None
    return by_value(one)


def _of_torch(one: nn.Module) -> Known:
    if isinstance(one, nn.GELU):
        return Known(gelu_name(one.approximate))
    if isinstance(one, nn.Softplus):
        check_threshold(one.threshold)
    ours = REPLACEMENTS[type(one)]
    return Known(ours.function, {name: getattr(one, name) for name in ours.arguments})


def function(one: Any) -> Known | None:
    """What one of torch's functions computes by itself, or a `functools.partial` of it with nothing but keywords."""
    if isinstance(one, partial):
        return None if one.args else call(one.func, (None,), one.keywords)
    return call(one, (None,), {})


def call(one: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Known | None:
    """What one of torch's functions computes when called so; None where it is no such function, or works in place."""
    if not _hashable(one) or one not in _TORCH:
        return None
    name, names = _TORCH[one]
    given = dict(zip(names, args[1:], strict=False)) | {key: it for key, it in kwargs.items() if key != "input"}
    if given.pop("inplace", False) or len(args) - 1 > len(names) or set(given) - set(names):
        return None
    try:
        if name == "gelu":
            return Known(gelu_name(given.get("approximate", "none")))
        if name == "softplus":
            check_threshold(given.pop("threshold", 20.0))
    except KernelError:
        return None
    return Known(name, {**DEFAULTS[name], **given})


def torchs() -> dict[str, str]:
    """The names of torch's functions that are known, each with the catalogue's."""
    return {one.__name__: function for one, (function, _) in _TORCH.items()}


def _hashable(one: Any) -> bool:
    try:
        hash(one)
    except TypeError:
        return False
    return True


def describe(one: Any) -> str:
    """A module or a function, in a word or two."""
    if isinstance(one, nn.Module):
        return type(one).__name__ + (", in place" if getattr(one, "inplace", False) is True else "")
    if isinstance(one, partial):
        return f"partial({describe(one.func)})"
    owner = "F." if getattr(F, getattr(one, "__name__", ""), None) is one else ""
    return owner + getattr(one, "__name__", repr(one))
