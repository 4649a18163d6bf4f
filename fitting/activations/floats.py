"""The number systems of numpy: float64 over arrays, fast, and float32, which keeps the type of what it is given."""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import sympy
from scipy import special
from sympy import Expr

from actfit.fitting.activations.arithmetics import COMPARISONS, NOT_REAL, Arithmetic


def _numpy_select(*branches: tuple[Any, Any]) -> Any:
    values, conditions = zip(*branches, strict=True)
    shape = np.broadcast_shapes(*map(np.shape, values), *map(np.shape, conditions))
    return np.select([np.broadcast_to(c, shape) for c in conditions], [np.broadcast_to(v, shape) for v in values])


def _numpy_power(base: Any, exponent: Any) -> Any:
    if isinstance(exponent, int):
        # numpy's array**int goes through pow(); repeated products are exact in order and much faster.
        power = (
            np.multiply.reduce([base] * abs(exponent)) if 0 < abs(exponent) <= 4 else np.power(base, float(exponent))
        )
        return 1 / power if -4 <= exponent < 0 else power
    return np.sqrt(base) if np.isscalar(exponent) and exponent == 0.5 else np.power(base, exponent)


def _both(*conditions: Any) -> Any:
    return np.logical_and.reduce(np.broadcast_arrays(*conditions))


def _either(*conditions: Any) -> Any:
    return np.logical_or.reduce(np.broadcast_arrays(*conditions))


@lru_cache(maxsize=4096)
def _float(node: Expr) -> Any:
    if node in (sympy.true, sympy.false):
        return bool(node)
    if node in NOT_REAL:
        return math.nan
    try:
        return float(node)
    except OverflowError:  # in a derivative, whose constants may be products of numbers below 1.8e308
        return math.copysign(math.inf, 1 if node.is_positive else -1)


def _float32(node: Expr) -> Any:
    value = _float(node)
    return value if isinstance(value, bool) else np.float32(value)


NUMPY = Arithmetic(
    "numpy",
    constant=_float,
    functions={
        **{name: getattr(np, name) for name in ("exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sign")},
        "expm1": np.expm1,
        "log1p": np.log1p,
        "Abs": np.abs,
        "atan": np.arctan,
        "erf": special.erf,
        "erfc": special.erfc,
        "sigmoid": special.expit,
        "softplus": lambda u: np.logaddexp(0.0, u),
        "sech": lambda u: 1 / np.cosh(u),
        "Phi": special.ndtr,
        "phi": lambda u: np.exp(-0.5 * u * u) / math.sqrt(2 * math.pi),
        "softsign": lambda u: u / (1 + np.abs(u)),
        "maximum": np.maximum,
        "minimum": np.minimum,
        "And": _both,
        "Or": _either,
        "Not": np.logical_not,
        **COMPARISONS,
    },
    power=_numpy_power,
    select=_numpy_select,
)

# The same over float32: numpy keeps the type of what it is given.
NUMPY32 = replace(
    NUMPY,
    name="numpy32",
    constant=_float32,
)
