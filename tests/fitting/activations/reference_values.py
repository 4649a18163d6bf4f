"""Values of text of the grammar, its functions by numpy and scipy, and the catalogue by mpmath."""

import math

import mpmath
import numpy as np
from scipy import special

from actfit.fitting.activations.grammar import parse
from actfit.fitting.activations.tape import Tape

POINTS = np.array([-3.7, -1.0, -0.4, 0.0, 0.3, 1.0, 2.9])


def value(text, points=POINTS, **parameters):
    return Tape(parse(text, parameters)).numpy(np.asarray(points, dtype=np.float64))


REFERENCE = {
    **{name: getattr(np, name) for name in ("exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sign")},
    **{"abs": np.abs, "Abs": np.abs, "atan": np.arctan, "erf": special.erf, "erfc": special.erfc},
    **{"expm1": np.expm1, "log1p": np.log1p, "sigmoid": special.expit, "Phi": special.ndtr},
    "softplus": lambda u: np.log1p(np.exp(u)),
    "sech": lambda u: 1 / np.cosh(u),
    "phi": lambda u: np.exp(-u * u / 2) / math.sqrt(2 * math.pi),
    "softsign": lambda u: u / (1 + np.abs(u)),
    "relu": lambda u: np.maximum(u, 0),
    "max": np.maximum,
    "min": np.minimum,
}

# The catalogue in mpmath, for any number of digits.
FORMULAS = {
    "sigmoid": lambda t: 1 / (1 + mpmath.exp(-t)),
    "tanh": mpmath.tanh,
    "softplus": lambda t: mpmath.log(1 + mpmath.exp(t)),
    "logsigmoid": lambda t: -mpmath.log(1 + mpmath.exp(-t)),
    "softsign": lambda t: t / (1 + abs(t)),
    "tanhshrink": lambda t: t - mpmath.tanh(t),
    "elu": lambda t: t if t > 0 else mpmath.exp(t) - 1,
    "celu": lambda t: t if t > 0 else mpmath.exp(t) - 1,
    "selu": lambda t: (
        mpmath.mpf("1.0507009873554804934193349852946")
        * (t if t > 0 else mpmath.mpf("1.6732632423543772848170429916717") * (mpmath.exp(t) - 1))
    ),
    "gelu": lambda t: t * (1 + mpmath.erf(t / mpmath.sqrt(2))) / 2,
    "gelu_tanh": lambda t: t * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (t + mpmath.mpf("0.044715") * t**3))) / 2,
    "quick_gelu": lambda t: t / (1 + mpmath.exp(-mpmath.mpf("1.702") * t)),
    "silu": lambda t: t / (1 + mpmath.exp(-t)),
    "mish": lambda t: t * mpmath.tanh(mpmath.log(1 + mpmath.exp(t))),
    "hardswish": lambda t: t * min(max(t + 3, 0), 6) / 6,
    "hardsigmoid": lambda t: min(max(t + 3, 0), 6) / 6,
    "relu": lambda t: max(t, 0),
    "relu2": lambda t: max(t, 0) ** 2,
    "relu6": lambda t: min(max(t, 0), 6),
    "leaky_relu": lambda t: max(t, mpmath.mpf(0.01) * t),
    "hardtanh": lambda t: min(max(t, -1), 1),
    "hardshrink": lambda t: t if abs(t) > 0.5 else 0,
    "softshrink": lambda t: mpmath.sign(t) * max(abs(t) - 0.5, 0),
    "threshold": lambda t: t if t > 0.1 else 20,
}
