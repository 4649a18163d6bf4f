"""References for the fewbit tests in plain numpy: f' written by hand, errors on a dense grid."""

import re
from functools import cache

import numpy as np
from scipy.special import erf

from actfit.fitting.activations import from_expression, get, names
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.weights import parse_weight

LO, HI = -10.0, 10.0
# Shipped tables whose cases show the others', too: the time grows with the number of levels.
SHOWN = re.compile(r"\w+/fewbit-[13]bit|gelu/fewbit-[248]bit")
GAP = 1e-3  # between an answer and its lower bound, relative
SAW = "where(x < 0, x*x/2, x*x/2 - 2*x)"  # f' = x, and x - 2 after a leap down at 0


def sigmoid(x):
    return 0.5 + 0.5 * np.tanh(x / 2)


def gelu(x):
    return 0.5 + 0.5 * erf(x / np.sqrt(2)) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def silu(x):
    return sigmoid(x) * (1 + x * (1 - sigmoid(x)))


def mish(x):
    t = np.tanh(np.logaddexp(0, x))
    return t + x * (1 - t * t) * sigmoid(x)


def selu(x):
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    return scale * np.where(x > 0, 1.0, alpha * np.exp(np.minimum(x, 0)))


def hardswish(x):
    return np.where(x <= -3, 0.0, np.where(x >= 3, 1.0, x / 3 + 0.5))


DERIVATIVES = {
    "gelu": gelu,
    "silu": silu,
    "mish": mish,
    "selu": selu,
    "hardswish": hardswish,
    "sigmoid": lambda x: sigmoid(x) * sigmoid(-x),
    "tanh": lambda x: 1 / np.cosh(x) ** 2,
    "softplus": sigmoid,
}
# |f''| <= 1.8 and |f'''| <= 4 hold for each of them on the smooth pieces, which end at grid points; |f'| <= 1.8.
BEND, TWIST, TOP = 1.8, 4.0, 1.8


@cache
def grid(n):
    """Midpoints of n equal cells of [-10, 10], and their length."""
    h = (HI - LO) / n
    return LO + h * (np.arange(n) + 0.5), h


def allowance(n, reach):
    """What the midpoint rule may miss of ∫ (f' - q)² with |q| <= reach, q constant on cells: 20·h²·max|g''|/24.

    g'' = 2 (f''² + (f' - q) f'''); and 1e-13 for the rounding of sums of values below (TOP + reach)².
    """
    h = (HI - LO) / n
    return (HI - LO) * h**2 * 2 * (BEND**2 + (TOP + reach) * TWIST) / 24 + 1e-13 * (TOP + reach) ** 2


def dense_error(values, q, h):
    return float(np.sum((values - q) ** 2) * h)


def nearest(values, levels):
    """Index of the level nearest to each value."""
    levels = np.sort(levels)
    return np.searchsorted((levels[1:] + levels[:-1]) / 2, values), levels


@cache
def activation_of(text):
    """The catalogue's function if `text` is its name, else that of the expression."""
    return get(text) if text in names() else from_expression(text)


@cache
def fitted(name, bits, levels="best", weight="uniform", domain=None):
    """A fit, cached for all tests that use it."""
    return fit(activation_of(name), bits, levels=levels, weight=parse_weight(weight), domain=domain)
