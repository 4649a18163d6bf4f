"""Which function of the catalogue a module or a function computes.

torch.nn's modules and torch's functions are known by what they are; other modules by what they give: see `by_value`.
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn import functional as F

from kernels import modules
from kernels.errors import KernelError
from kernels.functional import check_threshold, gelu_name
from kernels.kernel import facts
from kernels.modules import Remembering
from kernels.stock import FUNCTIONS, STOCK

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


@dataclass(frozen=True)
class Known:
    """A function of the catalogue, with its parameters."""

    function: str
    params: Mapping[str, float] = field(default_factory=dict)


def module(one: nn.Module) -> Known | str | None:
    """What a module computes; or, of an activation that is left alone, why; or None: it is no activation."""
    kind = type(one)
    if "forward" in vars(one) and (kind in REPLACEMENTS or kind in REASONS or not any(one.children())):
        return "its forward was replaced" if kind in REPLACEMENTS else None
    if kind in REPLACEMENTS:
        if _has_hooks(one):
            return "it has hooks, which would not be called any more"
        try:
            return _of_torch(one)
        except KernelError as error:
            return str(error)
    if reason := REASONS.get(kind):
        return reason
    if kind.__module__.startswith("torch.nn.") or isinstance(one, Remembering):
        return None
    if any(True for _ in one.children()) or any(True for _ in one.parameters()) or any(True for _ in one.buffers()):
        return None
    found = by_value(one)
    if isinstance(found, Known) and _has_hooks(one):
        return "it has hooks, which would not be called any more"
    return found


def _of_torch(one: nn.Module) -> Known:
    if isinstance(one, nn.GELU):
        return Known(gelu_name(one.approximate))
    if isinstance(one, nn.Softplus):
        check_threshold(one.threshold)
    ours = REPLACEMENTS[type(one)]
    return Known(ours.function, {name: getattr(one, name) for name in ours.arguments})


def _has_hooks(one: nn.Module) -> bool:
    return any(members for name, members in vars(one).items() if name.endswith("_hooks") and "state_dict" not in name)


def function(one: Any) -> Known | None:
    """What one of torch's functions computes, or a `functools.partial` of it with nothing but parameters."""
    if isinstance(one, partial):
        return call(one.func, (None, *one.args), dict(one.keywords))
    return call(one, (None,), {})


def call(one: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Known | None:
    """What one of torch's functions computes when called so; None where it is no such function, or works in place."""
    if not _hashable(one) or one not in _TORCH:
        return None
    name, names = _TORCH[one]
    given = dict(zip(names, args[1:], strict=False)) | {key: it for key, it in kwargs.items() if key != "input"}
    if given.pop("inplace", False) or len(args) - 1 > len(names):
        return None
    try:
        if name == "gelu":
            return Known(gelu_name(given.get("approximate", "none")))
        if name == "softplus":
            check_threshold(given.pop("threshold", 20.0))
    except KernelError:
        return None
    return Known(name, {**_defaults(name), **given})


def _defaults(name: str) -> dict[str, float]:
    return dict(facts(name).PARAMETERS)


def _hashable(one: Any) -> bool:
    try:
        hash(one)
    except TypeError:
        return False
    return True


# Formulas written out in float32 may be off by some units: 2^-20 is 16 of them. The functions differ by far more.
_TOLERANCE = 2.0**-20
OWN = (
    "it computes a function of its own: fit it by python -m fitting.fewbit --expr, and emit kernels by"
    " python -m codegen emit --expr"
)


def by_value(one: nn.Module) -> Known | str | None:
    """What a module without parameters computes, judged by its values and derivatives at 4096 points.

    It is run on a copy, so that it stays as it is. None: it is not element-wise, or cannot be run on one tensor.
    """
    with unset_fake_temporarily():
        try:
            y, slope = _curves(copy.deepcopy(one))
        except Exception:  # whatever a stranger's module raises when it is given such a tensor
            return None
        for name in FUNCTIONS:
            expected, derivative = _stock_curve(name)
            if _alike(y, expected) and _alike(slope, derivative):
                return Known(name, _defaults(name))
    return OWN


def _curves(trial: nn.Module) -> tuple[Tensor, Tensor]:
    """Values and derivatives. Raises KernelError for what is not element-wise, or another function in evaluation."""
    x = _points()
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y, slope = _curve(trial.train(), x)
        again, _ = _curve(trial.eval(), x)
        some, _ = _curve(trial.train(), x[:32, :32].flip(0, 1))
    if not _alike(y, again) or not _alike(y[:32, :32].flip(0, 1), some) or torch.equal(y, x):
        raise KernelError("not an activation")
    return y, slope


@cache
def _points() -> Tensor:
    # Off every round number, where functions have their kinks; far out, too, where some are clipped, but not so far
    # that exp overflows. In every block of rows and columns there are some of all.
    near = torch.linspace(-12.0 + 1e-3 / 3, 12.0, 3840, dtype=torch.float64, device="cpu")
    far = torch.logspace(1.08, 2.6, 128, dtype=torch.float64, device="cpu")
    return torch.cat([near, far, -far]).reshape(64, 64).T.contiguous()


@cache
def _stock_curve(name: str) -> tuple[Tensor, Tensor]:
    return _curve(partial(_stock, name), _points())


def _stock(name: str, x: Tensor) -> Tensor:
    result: Tensor = STOCK[name](x, *_defaults(name).values())
    return result


def _curve(run: Callable[[Tensor], Any], x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        y = run(x + 0)  # may be changed in place
        if not isinstance(y, Tensor) or y.shape != x.shape:
            raise KernelError("not element-wise")
        (slope,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return y.detach().double(), slope.double()


def _alike(one: Tensor, other: Tensor) -> bool:
    return bool(((one - other).abs() <= _TOLERANCE * (1 + other.abs())).all())


def describe(one: Any) -> str:
    """A module or a function, in a word or two."""
    if isinstance(one, nn.Module):
        return type(one).__name__ + (", in place" if getattr(one, "inplace", False) is True else "")
    if isinstance(one, partial):
        return f"partial({describe(one.func)})"
    owner = "F." if getattr(F, getattr(one, "__name__", ""), None) is one else ""
    return owner + getattr(one, "__name__", repr(one))


def signature_of_forward(one: nn.Module) -> inspect.Signature:
    """Of the class's forward, without self."""
    return inspect.signature(type(one).forward.__get__(one))
