"""Reference values for text of the grammar, and each function of the grammar by numpy and scipy."""

import math

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
