"""Operon's trees read as it means them, and its search."""

from importlib.util import find_spec

import numpy as np
import pytest
from sympy import exp, sqrt

from actfit.fitting.errors import InputError
from actfit.fitting.invact.symbolic import error, front, operon, pysr
from actfit.fitting.invact.variable import S, Y
from tests.fitting.invact.symbolic.forms import data

has_operon = pytest.mark.skipif(find_spec("pyoperon") is None, reason="pyoperon is not installed")


def test_resampling_stands_for_weights():
    weight = np.array([0.0, 1.0, 3.0, 0.0, 0.5])
    indices = operon.resample(weight, 90)
    assert np.all(np.abs(np.bincount(indices, minlength=5) - 90 * weight / 4.5) < 1)
    assert np.all(np.diff(indices) >= 0)
    assert list(operon.resample(np.ones(7), 7)) == list(range(7))


def test_nodes_are_read_as_operon_means_them():
    def token(kind, arity):
        return (kind, arity, 1.0, -1)

    y, s, three = ("Variable", 0, 2.0, 0), ("Variable", 0, 1.0, 1), ("Constant", 0, 3.0, -1)
    assert operon.read([y, token("Sub", 1)]) == -2 * Y
    assert operon.read([s, token("Div", 1)]) == 1 / S
    for kind, value in (("Sub", S - 2 * Y), ("Div", S / (2 * Y)), ("Add", S + 2 * Y), ("Mul", 2 * S * Y)):
        assert operon.read([y, s, token(kind, 2)]) == value
    for kind, value in (("Exp", exp(S)), ("Sqrt", sqrt(S)), ("Square", S**2)):
        assert operon.read([s, token(kind, 1)]) == value
    # Last written is first: what pyoperon.Evaluate made of 5, 3, 2: 2 - 3 - 5 and 2/3/5.
    assert operon.read([y, s, three, token("Sub", 3)]) == 3 - S - 2 * Y
    assert operon.read([y, s, three, token("Div", 3)]) == 3 / S / (2 * Y)


@has_operon
@pytest.mark.slow
def test_operon_finds_a_known_structure_and_the_same_again(monkeypatch):
    monkeypatch.setitem(operon.SETTINGS, "population_size", 300)
    monkeypatch.setitem(operon.SETTINGS, "generations", 30)
    done = []
    forms = operon.search(data(), seed=1, budget=2, progress=done.append)
    again = operon.search(data(), seed=1, budget=2)
    assert forms == again
    assert done == [1, 2]
    line = np.polynomial.Polynomial.fit(data().s, data().target, 1)
    assert error(forms[-1], data()) < 1e-3 * np.mean((line(data().s) - data().target) ** 2)
    assert error(forms[-1], data()) < 1e-12  # float32 rounds at 1e-15
    assert forms == front(forms, data())
    narrow = operon.search(data(), seed=1, budget=1, accept=lambda formula: not formula.expression.has(Y))
    assert narrow
    assert not any(formula.expression.has(Y) for formula in narrow)


def test_a_missing_engine_names_its_package(monkeypatch):
    monkeypatch.setattr(operon, "find_spec", lambda name: None)
    monkeypatch.setattr(pysr, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install pyoperon"):
        operon.search(data(), 0, 1)
    with pytest.raises(InputError, match="pip install pysr"):
        pysr.search(data(), 0, 1, maxsize=20)
