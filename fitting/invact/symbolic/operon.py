"""Symbolic regression by Operon (pyoperon), the engine that needs no Julia: many short seeded runs, one front.

`python -m actfit.fitting.invact.symbolic.operon FOLDER` runs the searches in a process of its own; `search` starts it.
Operon computes in float32 and knows no weights: its points are as dense as the weight, and the constants of its forms
are starts for a better fit.
"""

import json
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import sympy
from sympy import Expr, Rational

from actfit.fitting.errors import InputError
from actfit.fitting.invact.formula import Form
from actfit.fitting.invact.symbolic import Array, Data, child, front, pruned
from actfit.fitting.invact.symbolic.equations import to_form
from actfit.fitting.invact.variable import S, Y

ENGINE = "operon"
POINTS = 400
# A run takes 3 seconds. Length and error make the front; "mse" still tells formulas apart where "r2" is 1 in float32.
SETTINGS: dict[str, Any] = {
    "allowed_symbols": "add,sub,mul,div,sqrt,exp,square,constant,variable",
    "objectives": ["mse", "length"],
    "population_size": 1000,
    "generations": 50,
    "max_evaluations": 10**9,  # never the limit
    "optimizer_iterations": 5,
    "max_length": 30,
    "epsilon": 0.0,
    "n_threads": 1,
}

Token = tuple[str, int, float, int]  # NodeType, arity, value or weight, index of the variable or -1

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b,
}
_APPLY: dict[str, Callable[[Any], Any]] = {"Exp": sympy.exp, "Sqrt": sympy.sqrt, "Square": lambda a: a * a}


def search(
    data: Data,
    seed: int,
    budget: int,
    progress: Callable[[int], None] | None = None,
    accept: Callable[[Form], bool] = lambda form: True,
) -> list[Form]:
    """The Pareto front of `budget` runs with seeds `seed`, `seed` + 1, ..., simplest first.

    `progress` is called with the number of runs done; forms that `accept` refuses are left out of the front.
    The same arguments give the same forms. Raises `InputError` if pyoperon is missing or fails.
    """
    if find_spec("pyoperon") is None:
        raise InputError("engine operon needs pyoperon, which is not installed: pip install pyoperon")
    drawn = resample(data.weight, POINTS)
    forms: list[Form] = []
    with TemporaryDirectory(prefix="actfit-operon-") as name:
        folder = Path(name)
        features = np.column_stack([data.y, data.s])[drawn]
        np.savez(folder / "data.npz", features=features, target=data.target[drawn])
        runs = [SETTINGS | {"random_state": seed + run} for run in range(budget)]
        (folder / "runs.json").write_text(json.dumps(runs), "utf-8")
        with child("actfit.fitting.invact.symbolic.operon", folder, PIPE) as process:
            for done, line in enumerate(process.stdout or (), 1):
                if not line.endswith("\n"):
                    break  # the process died here; `child` says so
                forms = front([*forms, *filter(accept, _forms(json.loads(line)))], data)
                if progress is not None:
                    progress(done)
    # A run always adds a scale and an offset, which are often of no use.
    return front([*forms, *(form for whole in forms for form in pruned(whole) if accept(form))], data)


def resample(weight: Array, count: int) -> Any:
    """Indices of `count` points, (count,) of int: each point as often as its share of the weight, give or take one."""
    total = np.cumsum(weight)
    return np.searchsorted(total, (np.arange(count) + 0.5) / count * total[-1])


def _forms(trees: Sequence[Sequence[Token]]) -> list[Form]:
    forms = []
    for tokens in trees:
        if all(math.isfinite(value) for _, _, value, _ in tokens):
            expression = read(tokens)
            # Operon skips points without a real value, such as roots of negative numbers: drop such forms.
            if not expression.has(sympy.zoo, sympy.nan, sympy.oo):
                with suppress(InputError):
                    forms.append(to_form(expression, ENGINE))
    return forms


def read(tokens: Sequence[Token]) -> Expr:
    """The expression of a tree in postfix order. The operand written last is the first operand."""
    stack: list[Expr] = []
    for kind, arity, value, index in tokens:
        operands = [stack.pop() for _ in range(arity)]
        if kind == "Variable":
            node = (Y, S)[index]
        elif kind == "Constant":
            node = sympy.Integer(1)
        elif kind in _APPLY:
            node = _APPLY[kind](*operands)
        elif arity == 1 and kind in ("Sub", "Div"):
            node = -operands[0] if kind == "Sub" else 1 / operands[0]
        else:
            node = reduce(_COMBINE[kind], operands)
        stack.append(Rational(value) * node)  # every node has a weight
    return stack.pop()


def _tokens(tree: Any, hashes: Sequence[int]) -> list[Token]:
    return [
        (node.Type.name, node.Arity, node.Value, hashes.index(node.HashValue) if node.IsVariable else -1)
        for node in tree.Nodes
    ]


def main(folder: Path) -> None:
    """Do the runs that `folder` describes; each prints a line of JSON, the trees of its front."""
    from pyoperon.sklearn import SymbolicRegressor  # an extra, which only this process imports

    with np.load(folder / "data.npz") as arrays:
        features, target = arrays["features"], arrays["target"]
    for settings in json.loads((folder / "runs.json").read_text("utf-8")):
        model = SymbolicRegressor(**settings).fit(features, target)
        trees = [_tokens(entry["tree"], list(model.variables_)) for entry in model.pareto_front_]
        sys.stdout.write(json.dumps(trees) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
