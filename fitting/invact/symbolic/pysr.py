"""Symbolic regression by PySR, in a process of its own: Julia beside other numerical libraries can crash a process.

`python -m` runs the search in FOLDER; `search` starts it and reads the file that PySR leaves.
If Julia cannot be installed here, a search can run elsewhere: `read_hall_of_fame` takes its folder.
"""

import json
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from subprocess import DEVNULL
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import sympy
from sympy import Expr, Rational

from actfit.fitting.errors import InputError
from actfit.fitting.invact.formula import Form
from actfit.fitting.invact.symbolic import Data, child, front
from actfit.fitting.invact.symbolic.equations import NAME, read_hall_of_fame
from actfit.fitting.invact.variable import S, Y

ENGINE = "pysr"
RUN = "run"  # PySR's name for the sub-folder that it writes into
START = 1800  # seconds: the first import downloads Julia and compiles its packages
NETWORK = 30  # seconds without an answer from the network before the import gives up
ELSEWHERE = "or search elsewhere and give --import-pysr DIR, or take --engine operon"

_NAMES = {Y: "x0", S: "x1"}  # PySR's default names, in which guesses are written


def search(
    data: Data,
    seed: int,
    budget: int,
    *,
    maxsize: int,
    timeout: float | None = None,
    guesses: Sequence[Form] = (),
    accept: Callable[[Form], bool] = lambda form: True,
) -> list[Form]:
    """The Pareto front of one deterministic search of `budget` iterations, simplest first.

    `maxsize` is the largest size of a formula in PySR's nodes, at least 7; `timeout` is in seconds, and a search that
    it ends is not repeatable; `guesses` are formulas to start from, skipped if PySR cannot spell them; forms that
    `accept` refuses are left out. Raises `InputError` if PySR or Julia is missing or fails.
    """
    if find_spec("pysr") is None:
        raise InputError(f"engine pysr needs PySR, which is not installed: pip install pysr, {ELSEWHERE}")
    terminal = sys.stderr.isatty()
    with TemporaryDirectory(prefix="actfit-pysr-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        arguments = options(folder, seed, budget, maxsize=maxsize, timeout=timeout, guesses=guesses, progress=terminal)
        features = np.column_stack([data.y, data.s])
        np.savez(folder / "data.npz", features=features, target=data.target, weight=data.weight)
        (folder / "options.json").write_text(json.dumps(arguments), "utf-8")
        limit = None if timeout is None else START + timeout
        with child("actfit.fitting.invact.symbolic.pysr", folder, sys.stderr if terminal else DEVNULL, limit):
            pass
        if not any((folder / RUN).glob(f"{NAME}*")):
            raise InputError("engine pysr: the search ended before its first formulas; give it more time")
        forms = read_hall_of_fame(folder / RUN)
    return front(filter(accept, forms), data)


def options(
    folder: Path,
    seed: int,
    budget: int,
    *,
    maxsize: int,
    timeout: float | None = None,
    guesses: Sequence[Form] = (),
    progress: bool = False,
) -> dict[str, Any]:
    """The keyword arguments of `pysr.PySRRegressor`; all can be written as JSON."""
    spelled = [spell(guess) for guess in guesses]
    return {
        "binary_operators": ["+", "-", "*", "/"],
        "unary_operators": ["square", "sqrt", "exp"],
        # Arguments of roots and exponentials stay small, and towers of them are forbidden.
        "constraints": {"sqrt": 7, "exp": 11},
        "nested_constraints": {
            "sqrt": {"sqrt": 0, "exp": 0, "square": 0},
            "exp": {"exp": 1, "sqrt": 1},
            "square": {"square": 1},
        },
        "maxsize": maxsize,
        "niterations": budget,
        "populations": 15,
        "precision": 64,
        "print_precision": 17,
        "batching": False,
        "deterministic": True,
        "parallelism": "serial",
        "random_state": seed,
        "timeout_in_seconds": timeout,
        "guesses": [text for text, nodes in spelled if text and nodes <= maxsize] or None,
        "progress": progress,
        "verbosity": int(progress),
        "input_stream": "devnull",
        "output_directory": str(folder),
        "run_id": RUN,
    }


def spell(form: Form) -> tuple[str, int]:
    """The form in Julia with its numbers put in, by the operators of `options`, and PySR's count of its nodes.

    The text is empty if these operators do not suffice.
    """
    numbers = dict(zip(form.constants, map(Rational, form.values), strict=True))

    def join(symbol: str, operands: Sequence[tuple[str, int]]) -> tuple[str, int]:
        text = f" {symbol} ".join(text for text, _ in operands)
        return f"({text})", sum(nodes for _, nodes in operands) + len(operands) - 1

    def call(name: str, operand: tuple[str, int]) -> tuple[str, int]:
        return f"{name}({operand[0]})", operand[1] + 1

    def power(base: tuple[str, int], exponent: Expr) -> tuple[str, int]:
        if exponent.is_negative:
            return join("/", [("1.0", 1), power(base, -exponent)])
        if not exponent.is_Rational or exponent.q > 2:
            raise _Unspelled
        whole, root = divmod(exponent, 1)
        squares, odd = divmod(whole, 2)
        factors = [call("square", base)] * squares + [base] * odd + [call("sqrt", base)] * (root != 0)
        return factors[0] if len(factors) == 1 else join("*", factors)

    def walk(node: Expr) -> tuple[str, int]:
        if node in _NAMES:
            return _NAMES[node], 1
        if node in numbers or node.is_Rational:
            return f"({float(numbers.get(node, node))!r})", 1
        if node.is_Add:
            return join("+", [walk(argument) for argument in node.args])
        if node.is_Mul:
            below = [factor for factor in node.args if factor.is_Pow and factor.exp.is_negative]
            above = [walk(factor) for factor in node.args if factor not in below] or [("1.0", 1)]
            return join("/", [join("*", above), *(walk(1 / factor) for factor in below)])
        if node.is_Pow:
            return power(walk(node.base), node.exp)
        if isinstance(node, sympy.exp):
            return call("exp", walk(node.args[0]))
        raise _Unspelled

    try:
        return walk(form.expression)
    except _Unspelled:
        return "", 0


class _Unspelled(Exception):
    """A formula that needs an operator which the search does not have."""


def main(folder: Path) -> None:
    """Run the search that `folder` describes; PySR leaves its hall of fame in the sub-folder `RUN`."""
    socket.setdefaulttimeout(NETWORK)  # juliapkg waits for the network without any limit of its own
    try:
        # Imported here, as it starts Julia. Without Julia it fails in many ways, and seldom by an ImportError.
        from pysr import PySRRegressor
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        sys.exit(f"PySR's Julia does not start ({why:.200}): give it network access once, {ELSEWHERE}")
    arguments: Mapping[str, Any] = json.loads((folder / "options.json").read_text("utf-8"))
    # `guesses` and `input_stream` are younger than the rest.
    known = signature(PySRRegressor.__init__).parameters
    model = PySRRegressor(**{name: value for name, value in arguments.items() if name in known})
    with np.load(folder / "data.npz") as arrays:
        model.fit(arrays["features"], arrays["target"], weights=arrays["weight"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
