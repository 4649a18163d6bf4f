"""Which function of the catalogue a module computes, recognised by its values."""

import copy
import inspect
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from kernels import private
from kernels.conversion.function import DEFAULTS, Function
from kernels.engine.elements import DTYPES
from kernels.errors import KernelError
from kernels.methods.functions import FUNCTIONS
from kernels.stock import STOCK

# A formula in float32 may be wrong by some units in the last place: 2^-20 is 16. Functions differ by far more.
_TOLERANCE = 2.0**-20
_SHAPE = (48, 80)
_FAR = torch.tensor([1e3, 2e4, 6e4, 1e6, 1e9, 1e30, torch.inf, torch.nan], dtype=torch.float64, device="cpu")
NOT_IN_CATALOGUE = (
    "it computes a function of its own: save its derivative by method='forward-ad', or fit it by python -m"
    " fitting.fewbit --expr and emit kernels by python -m codegen emit --expr"
)


def recognised_numerically(module: nn.Module) -> Function | str | None:
    """What a module without parameters computes, by its values and derivatives at 3840 points, and values far out.

    A copy of the module runs. Gives a reason if a replacement would lack something the module has, and None if it is
    not element-wise or cannot run on one tensor.
    """
    with private.unset_fake_temporarily(), torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            copied = copy.deepcopy(module)
            y, derivative, keeps_dtype = _judged(copied)
            names = (name for name in FUNCTIONS if all(map(_alike, (y, derivative), _stock_curve(name))))
            function = next((name for name in names if _everywhere(copied, name)), None)
        except Exception:  # the module may raise anything for such a tensor
            return None
    if function is None:
        return NOT_IN_CATALOGUE
    if not keeps_dtype:
        return f"it computes {function} in another dtype than its input's"
    if lacking := _own_attributes(module):
        own = ", ".join(lacking)
        return f"it computes {function}, but has attributes of its own ({own}), which a module of ours lacks"
    if len(inspect.signature(module.forward).parameters) != 1:
        return f"it computes {function}, but takes further arguments"
    return Function(function, DEFAULTS[function])


def _own_attributes(module: nn.Module) -> list[str]:
    """Names of public attributes that nn.Module lacks, except functions and inplace=False."""
    plain = vars(nn.Module())
    own = {name: value for name, value in vars(module).items() if name not in plain and not callable(value)}
    return [name for name, value in own.items() if name[0] != "_" and not (name == "inplace" and value is False)]


def _judged(module: nn.Module) -> tuple[Tensor, Tensor, bool]:
    """Values, derivatives, and whether the dtype stays. Raises KernelError if the module is not an activation."""
    x = _points()
    y, derivative = _curve(module.train(), x)
    again, _ = _curve(module.eval(), x)
    part, _ = _curve(module.train(), x[:40, :30].flip(0, 1))
    signs = torch.where(torch.arange(x.numel()).reshape(_SHAPE) % 3 > 0, 10.0, -7.0).double()
    _, scaled = _curve(module, x, signs)
    narrow = module(x.bfloat16())
    if not _alike(y, again) or not _alike(y[:40, :30].flip(0, 1), part) or not _alike(scaled, derivative * signs):
        raise KernelError("not an activation")
    if bool((derivative == derivative.flatten()[0]).all()):
        raise KernelError("a straight line")
    return y, derivative, narrow.dtype == torch.bfloat16


def _everywhere(module: nn.Module, name: str) -> bool:
    """Whether values are the function's in each dtype, far out and in more dimensions: there are no special cases.

    Values where the module's own formula overflows are not compared.
    """
    for dtype in DTYPES:
        x = torch.cat([_points().flatten()[::16], _FAR, -_FAR]).to(dtype)
        exact = _stock(name, x.double())
        size = 1 + exact.abs() + torch.where(x.isfinite(), x, 0).double().abs()
        tolerance = max(_TOLERANCE, 16 * torch.finfo(dtype).eps) * size
        for shape in ((4, 8, 8), (2, 4, 4, 8)):
            with torch.no_grad():
                y = module(x.reshape(shape)).double().flatten()
            close = (y == exact) | (((y - exact).abs() <= tolerance) & tolerance.isfinite())
            if not bool((close | ~y.isfinite()).all()):
                return False
    return True


@cache
def _points() -> Tensor:
    # Not at round numbers, where functions have kinks; also far out, where some are clipped, but not so far that exp
    # overflows. Every block of rows and columns has points of all kinds.
    near = torch.linspace(-12.0 + 1e-3 / 3, 12.0, 3584, dtype=torch.float64, device="cpu")
    far = torch.logspace(1.08, 2.6, 128, dtype=torch.float64, device="cpu")
    return torch.cat([near, far, -far]).reshape(_SHAPE[::-1]).T.contiguous()


@cache
def _stock_curve(name: str) -> tuple[Tensor, Tensor]:
    return _curve(partial(_stock, name), _points())


def _stock(name: str, x: Tensor) -> Tensor:
    result: Tensor = STOCK[name](x, *DEFAULTS[name].values())
    return result


def _curve(run: Callable[[Tensor], Any], x: Tensor, grad: Tensor | None = None) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        y = run(x + 0)  # may be changed in place
        if not isinstance(y, Tensor) or y.shape != x.shape:
            raise KernelError("not element-wise")
        (derivative,) = torch.autograd.grad(y, x, torch.ones_like(y) if grad is None else grad.to(y.dtype))
    return y.detach().double(), derivative.double()


def _alike(values: Tensor, expected: Tensor) -> bool:
    return bool(((values - expected).abs() <= _TOLERANCE * (1 + expected.abs())).all())
