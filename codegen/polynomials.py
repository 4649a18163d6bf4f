"""The polynomials inside the primitives: what each stands for, and where; `minimax` finds the coefficients.

`16bit` asks for a relative error of 2**-17, a 32nd of what rounding to float16 adds; `float32` for 2**-26.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import mpmath

from codegen.minimax import polynomial

PRECISIONS = ("16bit", "float32")
TOLERANCE = {"16bit": 2.0**-17, "float32": 2.0**-26}
TIGHTER = {"mills": 2.0**-22}  # f' of gelu is a difference of two terms next to the minimum of f
MILLS_SLOPE = 0.25  # of t = 1 / (1 + MILLS_SLOPE*|x|), in which the Mills ratio is nearly a polynomial
_FAR = 14.5  # Phi(-_FAR) is below the smallest subnormal number of float32


def _mills(t: Any) -> Any:
    """Phi(-x)·exp(x²/2)/t at the x >= 0 that t stands for."""
    at = (1 / t - 1) / MILLS_SLOPE
    return mpmath.exp(at**2 / 2) * mpmath.erfc(at / mpmath.sqrt(2)) / 2 / t


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


# name -> function, and its interval in each of PRECISIONS
_UNIT = (0.0, 1.0)
_MILLS = (1 / (1 + MILLS_SLOPE * _FAR), 1.0)
POLYNOMIALS: dict[str, tuple[Callable[[Any], Any], tuple[float, float], tuple[float, float]]] = {
    "mills": (_mills, _MILLS, _MILLS),
    "log1p of exp": (_ratio(mpmath.log1p), _UNIT, _UNIT),
    "log1p": (_ratio(mpmath.log1p), (-0.125, 0.125), (-0.25, 0.25)),
    "expm1": (_ratio(mpmath.expm1), (-0.125, 0.125), (-0.375, 0.375)),
    "sinh": (_odd(mpmath.sinh), (0.0, 0.25), (0.0, 1.0)),
    "tanh": (_odd(mpmath.tanh), (0.0, 0.25), (0.0, 0.375)),
    "tanhshrink": (_odd(mpmath.tanh), _UNIT, _UNIT),
    "atan": (_odd(mpmath.atan), _UNIT, _UNIT),
}


@cache
def coefficients(name: str, precision: str) -> tuple[float, ...]:
    """c0, c1, ... of one of POLYNOMIALS, float32 numbers."""
    function, coarse, fine = POLYNOMIALS[name]
    lo, hi = coarse if precision == "16bit" else fine
    return polynomial(function, lo, hi, min(TOLERANCE[precision], TIGHTER.get(name, 1.0)))
