"""The polynomials inside the primitives: function and interval of each; `minimax` finds the coefficients.

Their relative errors are at most an eighth of the error of rounding to the dtype, 2**-9, 2**-12 and 2**-25.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import mpmath

from actfit.codegen.minimax import polynomial

TOLERANCE = {"bfloat16": 2.0**-12, "float16": 2.0**-17, "float32": 2.0**-26}
# Phi in f is dearest in the few-bit kernels, which have least time; in f' of gelu two terms cancel.
OTHERWISE = {
    "mills": {"bfloat16": 2.0**-12, "float16": 2.0**-14},
    "fine mills": {"bfloat16": 2.0**-22, "float16": 2.0**-22},
}
MILLS_SLOPES = {
    "mills": 0.3,
    "fine mills": 0.25,
}  # of t = 1 / (1 + slope*|x|): Mills's ratio is nearly a polynomial in t
_FAR = 14.5  # Phi(-_FAR) is below the smallest subnormal number of float32


def _mills(slope: float) -> Callable[[Any], Any]:
    """Phi(-x)·exp(x²/2)/t, as a function of t = 1 / (1 + slope*x)."""

    def ratio(t: Any) -> Any:
        at = (1 / t - 1) / slope
        return mpmath.exp(at**2 / 2) * mpmath.erfc(at / mpmath.sqrt(2)) / 2 / t

    return ratio


def _ratio(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """f(x)/x, for an f with f(0) = 0 and f'(0) = 1."""
    return lambda at: function(at) / at if at else mpmath.mpf(1)


def _odd(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """(f(x)/x - 1)/x² as a function of x², for an odd f with f'(0) = 1."""

    def quotient(square: Any) -> Any:
        with mpmath.extradps(40):
            at = mpmath.sqrt(square) if square else mpmath.mpf(10) ** -20
            return (function(at) / at - 1) / at**2

    return quotient


# name -> function, and its interval in 16 bits and in float32
_UNIT = (0.0, 1.0)
_MILLS = {name: (1 / (1 + slope * _FAR), 1.0) for name, slope in MILLS_SLOPES.items()}
POLYNOMIALS: dict[str, tuple[Callable[[Any], Any], tuple[float, float], tuple[float, float]]] = {
    **{name: (_mills(slope), _MILLS[name], _MILLS[name]) for name, slope in MILLS_SLOPES.items()},
    "exp2": (lambda at: mpmath.mpf(2) ** at, (-0.5, 0.5), (-0.5, 0.5)),
    "log1p of exp": (_ratio(mpmath.log1p), _UNIT, _UNIT),
    "log1p": (_ratio(mpmath.log1p), (-0.125, 0.125), (-0.25, 0.25)),
    "expm1": (_ratio(mpmath.expm1), (-0.125, 0.125), (-0.375, 0.375)),
    "sinh": (_odd(mpmath.sinh), (0.0, 0.25), (0.0, 1.0)),
    "tanh": (_odd(mpmath.tanh), (0.0, 0.25), (0.0, 0.375)),
    "tanhshrink": (_odd(mpmath.tanh), _UNIT, _UNIT),
    "atan": (_odd(mpmath.atan), _UNIT, _UNIT),
}


def tolerance(name: str, dtype: str) -> float:
    """The relative error that one of POLYNOMIALS may have."""
    return OTHERWISE.get(name, {}).get(dtype, TOLERANCE[dtype])


@cache
def coefficients(name: str, dtype: str) -> tuple[float, ...]:
    """c0, c1, ... of one of POLYNOMIALS, float32 numbers."""
    function, coarse, fine = POLYNOMIALS[name]
    lo, hi = fine if dtype == "float32" else coarse
    return polynomial(function, lo, hi, tolerance(name, dtype))
