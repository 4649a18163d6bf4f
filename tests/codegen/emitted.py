"""Functions of one tensor as the emitted PyTorch module computes them, and as torch does; random functions; what the
functions in emitted formulas mean."""

from collections.abc import Callable

import hypothesis.strategies as st
import mpmath
import torch
from torch import Tensor
from torch.nn import functional as F

from actfit.codegen.fused import fuse
from actfit.fitting.activations.functions import DEFINITIONS
from tests.codegen.run import module

Made = Callable[..., Tensor]
EPS = 2.0**-52
# Each function of one argument in mpmath.
MEANING = {
    **DEFINITIONS,
    "tanh_softplus": lambda u: mpmath.tanh(DEFINITIONS["softplus"](u)),
    "sech2_softplus": lambda u: mpmath.sech(DEFINITIONS["softplus"](u)) ** 2,
    "fine_Phi": DEFINITIONS["Phi"],
    "tanhshrink": lambda u: u - mpmath.tanh(u),
}
# Where branches of some function meet, and between.
POINTS = torch.tensor(
    [-30, -6, -4, -3, -2.5, -1.5, -1, -0.7, -0.5, -0.3, -0.1, 0, 0.1, 0.3, 0.5, 0.7, 1, 1.5, 2.5, 3, 4, 5, 6, 7, 30],
    dtype=torch.float64,
)


def emitted(function: Made, x: Tensor, folder: object, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
    """The first result and its derivative, as the emitted PyTorch module has them, in float64."""
    fused = fuse(function, "f", args, kwargs)
    results = module(fused.text("torch", "float32"), folder).element(x)
    return results[0], results[fused.count]


def expected(function: Made, x: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
    """The result and its derivative by torch and its autograd."""
    x = x.clone().requires_grad_()
    y = function(x, *args, **kwargs)
    return y.detach(), torch.autograd.grad(y.sum(), x)[0]


UNITS = {
    "hardsigmoid": 2**26,  # torch's 1/6 is a float32 number
    "softplus": 2**24,  # which torch rounds to x from 20 on
}


@st.composite
def functions(draw: Callable[..., object]) -> Made:
    """A random function of one tensor: no poles, and nothing that grows fast."""
    number = st.floats(-2, 2).map(lambda value: round(value, 2))
    unary = st.sampled_from(
        [
            *(torch.tanh, torch.sigmoid, torch.sin, torch.cos, torch.relu, torch.abs, torch.atan, torch.erf, torch.neg),
            *(F.softplus, F.gelu, F.silu, F.mish, F.elu, F.selu, F.softsign, F.hardswish, F.leaky_relu, F.hardsigmoid),
            *(lambda a: a.clamp(-1, 1.5), lambda a: torch.exp(-a * a), lambda a: 1 / (1 + a * a), lambda a: a / 4 + 1),
        ]
    )

    def combined(inner: st.SearchStrategy[Made]) -> st.SearchStrategy[Made]:
        return st.one_of(
            st.tuples(unary, inner).map(lambda t: lambda x: t[0](t[1](x))),
            st.tuples(inner, number).map(lambda t: lambda x: t[0](x) * t[1]),
            st.tuples(inner, inner).map(lambda t: lambda x: t[0](x) + t[1](x)),
            st.tuples(inner, inner).map(lambda t: lambda x: t[0](x) * t[1](x)),
            st.tuples(inner, inner).map(lambda t: lambda x: torch.maximum(t[0](x), t[1](x))),
            st.tuples(inner, inner, inner).map(lambda t: lambda x: torch.where(t[0](x) > 0.25, t[1](x), t[2](x))),
        )

    return draw(st.recursive(st.just(lambda x: x), combined, max_leaves=6))
