"""Entries of the catalogue with parameters, for tests that run over all of them."""

import math
from functools import cache

import pytest

from actfit.fitting.activations import get, names
from tests.fitting.agreement import EPS

INF = math.inf

# Every entry with its defaults, and parameters away from them: negative, zero, not short in binary, out of order.
PARAMETERS = [
    *((name, {}) for name in names()),
    *(("leaky_relu", {"negative_slope": slope}) for slope in (0.0, -0.3, 1.0, 2.5)),
    ("threshold", {"threshold": 1.3, "value": -7.1}),
    ("threshold", {"threshold": -0.7, "value": -0.7}),
    ("hardtanh", {"min_val": -0.3, "max_val": 2.7}),
    ("hardtanh", {"min_val": 1.1, "max_val": 5.0}),
    ("hardshrink", {"lambd": 0.1}),
    ("softshrink", {"lambd": 1.7}),
    ("softplus", {"beta": 0.3}),
    ("softplus", {"beta": 7.0}),
    *(("elu", {"alpha": alpha}) for alpha in (0.0, -0.7, 2.3)),
    *(("celu", {"alpha": alpha}) for alpha in (0.1, 3.0)),
]
ids = [" ".join([name, *(f"{key}={value}" for key, value in params.items())]) for name, params in PARAMETERS]
every_case = pytest.mark.parametrize(("name", "params"), PARAMETERS, ids=ids)
every_name = pytest.mark.parametrize("name", names())
known = cache(get)  # cached, so that examples of a test share derived properties


def close(values):
    return pytest.approx(values, rel=4 * EPS, abs=0)


def shape(activation):
    """Branches as text, like '- 0.0 + 1.0 0': directions with the points between them."""
    signs = {1: "+", -1: "-", 0: "0"}
    first, *others = activation.branches
    return " ".join([signs[first.direction], *(f"{b.lo:.6g} {signs[b.direction]}" for b in others)])
