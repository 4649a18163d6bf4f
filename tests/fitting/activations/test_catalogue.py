"""Functions by name: aliases, parameters, refusals, equality."""

import math
import pickle

import numpy as np
import pytest

from actfit.fitting.activations import Activation, from_expression, get, names, oracle
from actfit.fitting.activations.catalogue import ALIASES
from actfit.fitting.errors import InputError
from tests.fitting.activations.catalogue_cases import every_case


def test_alias():
    assert get("swish") == get("silu")
    assert get("swish").name == "silu"
    assert ALIASES == {"swish": "silu"}
    assert "swish" not in names()


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("gelo", {}, "unknown function 'gelo'; did you mean gelu or elu or selu?"),
        ("swihs", {}, "swish"),
        ("gelu", {"alpha": 1.0}, "unknown parameter 'alpha'; gelu has none"),
        ("hardtanh", {"min": 1.0}, "unknown parameter 'min'; hardtanh has min_val, max_val"),
        ("softplus", {"beta": 0.0}, "beta must be positive, got beta=0"),
        ("elu", {"alpha": math.nan}, "parameter alpha must be finite, got nan"),
        ("hardtanh", {"min_val": 1.0}, "max_val must be above min_val, got min_val=1, max_val=1"),
    ],
)
def test_bad_names_and_parameters(name, params, message):
    with pytest.raises(InputError) as caught:
        get(name, **params)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("expr", "options", "message"),
    [
        ("a*x", {}, "unknown name 'a'"),
        ("x", {"params": {"a": 1.0}}, "parameter a must be in the expression, got 'x'"),
        ("x/a", {"params": {"a": 0.0}}, "division by zero at position 1"),
        ("a*x", {"params": {"a": 0.0}}, "must be a function of x"),
        ("sin*x", {"params": {"sin": 1.0}}, "no function's name, got 'sin'"),
        ("x", {"name": "../../etc"}, "name must be letters"),
    ],
)
def test_bad_user_functions(expr, options, message):
    with pytest.raises(InputError) as caught:
        from_expression(expr, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@every_case
def test_pickle_and_equality(name, params):
    activation = get(name, **params)
    activation.turning_points(1)  # fills caches with what cannot be pickled
    again = pickle.loads(pickle.dumps(activation))
    assert again == activation
    assert hash(again) == hash(activation)
    assert again is not activation
    points = np.linspace(-3, 3, 13)
    assert np.array_equal(again.df(points), activation.df(points))


def test_inequality():
    assert get("elu") != get("elu", alpha=2.0)
    assert get("elu", alpha=2) == get("elu", alpha=2.0)
    assert get("celu") != get("elu")
    assert get("relu") != Activation("relu", "max(x, 0)")
    assert from_expression(" x*x ", "square", {}) == from_expression("x*x", "square")
    assert len({get("elu"), get("elu"), get("elu", alpha=3.0)}) == 2


def test_parameters_are_float64_exactly():
    # 0.1 is a little above 1/10: the oracle must take the same side of the kink as torch and numpy.
    threshold = get("threshold", threshold=0.1)
    assert (float(threshold.f(0.1)), float(oracle.f(threshold, 0.1)), float(oracle.df(threshold, 0.1))) == (20, 20, 0)
    assert float(threshold.f(np.nextafter(0.1, 1))) == np.nextafter(0.1, 1)
