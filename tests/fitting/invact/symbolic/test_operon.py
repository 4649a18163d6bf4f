"""Operon's trees read as it means them, and its search."""

from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest

from actfit.fitting.errors import InputError
from actfit.fitting.invact.symbolic import error, evaluate, front, operon, pysr
from actfit.fitting.invact.variable import S, Y
from tests.fitting.invact.symbolic.forms import data

has_operon = pytest.mark.skipif(find_spec("pyoperon") is None, reason="pyoperon is not installed")


def test_resampling_stands_for_weights():
    weight = np.array([0.0, 1.0, 3.0, 0.0, 0.5])
    indices = operon.resample(weight, 90)
    assert np.all(np.abs(np.bincount(indices, minlength=5) - 90 * weight / 4.5) < 1)
    assert np.all(np.diff(indices) >= 0)
    assert list(operon.resample(np.ones(7), 7)) == list(range(7))


@cache
def fitted():
    """A small run of Operon's own: the model, and random points."""
    from pyoperon.sklearn import SymbolicRegressor

    settings = operon.SETTINGS | {"population_size": 200, "generations": 2, "optimizer_iterations": 2}
    given = data()
    features = np.column_stack([given.y + 0.2, given.s])
    model = SymbolicRegressor(**settings, random_state=3).fit(features, given.target)
    return model, np.random.default_rng(0).uniform(0.01, 0.6, (50, 2))


@pytest.mark.slow
@has_operon
def test_trees_are_read_as_operon_means_them():
    model, points = fitted()
    trees = [entry["tree"] for entry in model.pareto_front_] + [
        individual.Genotype for individual in model.individuals_
    ]
    used, unread = set(), 0
    for tree in trees:
        tokens = operon._tokens(tree, list(model.variables_))
        used |= {kind for kind, *_ in tokens}
        forms = operon._forms([tokens])
        unread += not forms
        for formula in forms:
            expected, got = model.evaluate_model(tree, points).astype(float), evaluate(formula, *points.T)
            with np.errstate(all="ignore"):
                bound = float32_bound(tokens, *points.T)
            resolved = np.isfinite(expected) & (bound < 1)
            assert np.all(np.abs(got[resolved] - expected[resolved]) <= bound[resolved])
    assert used == {"Add", "Sub", "Mul", "Div", "Sqrt", "Exp", "Square", "Constant", "Variable"}
    assert unread < 0.1 * len(trees)  # of which some part is the root of a negative number


def float32_bound(tokens, y, s):
    """What rounding to float32 at every node can make of the value, first order, doubled."""
    eps, stack = 2.0**-23, []
    for kind, arity, value, index in tokens:
        operands = [stack.pop() for _ in range(arity)]
        match kind:
            case "Variable":
                result, off = (y, s)[index], 0 * y
            case "Constant":
                result, off = np.ones_like(y), 0 * y
            case "Add" | "Sub":
                (a, da), (b, db) = operands
                result, off = (a + b if kind == "Add" else a - b), da + db
            case "Mul":
                (a, da), (b, db) = operands
                result, off = a * b, abs(a) * db + abs(b) * da
            case "Div":
                (a, da), (b, db) = operands
                result, off = a / b, (da + abs(a / b) * db) / abs(b)
            case "Exp":
                ((a, da),) = operands
                result, off = np.exp(a), np.exp(a) * da
            case "Sqrt":
                ((a, da),) = operands
                result, off = np.sqrt(a), da / np.sqrt(a)
            case "Square":
                ((a, da),) = operands
                result, off = a * a, 2 * abs(a) * da
        result = value * result
        stack.append((result, abs(value) * off + 4 * eps * abs(result)))
    return 2 * stack.pop()[1] + 1e-37


def test_nodes_of_one_and_of_three_operands():
    def token(kind, arity):
        return (kind, arity, 1.0, -1)

    y, s, three = ("Variable", 0, 2.0, 0), ("Variable", 0, 1.0, 1), ("Constant", 0, 3.0, -1)
    assert operon.read([y, token("Sub", 1)]) == -2 * Y
    assert operon.read([s, token("Div", 1)]) == 1 / S
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
