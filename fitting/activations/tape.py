"""Evaluate a sympy expression without generating code: a list of instructions, run in one of four arithmetics."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr

from fitting.activations.arithmetics import ACB, ARB, MPMATH, NUMPY, Arithmetic
from fitting.activations.heads import x

Array = NDArray[np.float64]


class Tape:
    """The instructions of one expression in `x`, common subexpressions computed once."""

    def __init__(self, expression: Expr) -> None:
        self.expression = expression
        self._nodes: list[tuple[Expr, tuple[int, ...]]] = []
        self._index: dict[Expr, int] = {}
        self._programs: dict[str, list[tuple[Callable[..., Any], tuple[int, ...]]]] = {}
        self._add(expression)

    def _add(self, node: Expr) -> int:
        if node not in self._index:
            operands = tuple(self._add(argument) for argument in node.args)
            self._nodes.append((node, operands))
            self._index[node] = len(self._nodes) - 1
        return self._index[node]

    def run(self, arithmetic: Arithmetic, value: Any) -> Any:
        """The expression at x = `value`, in that arithmetic."""
        return self._cells(arithmetic, value)[-1]

    def _cells(self, arithmetic: Arithmetic, value: Any) -> list[Any]:
        if arithmetic.name not in self._programs:
            self._programs[arithmetic.name] = [
                (arithmetic.operation(node), operands) if operands else (partial(arithmetic.constant, node), ())
                for node, operands in self._nodes
            ]
        cells: list[Any] = []
        for (node, _), (operation, operands) in zip(self._nodes, self._programs[arithmetic.name], strict=True):
            cells.append(value if node == x else operation(*[cells[i] for i in operands]))
        return cells

    def numpy(self, values: Array) -> Array:
        """Float64 values at each of `values`; overflow and invalid operations are silent (inf, NaN)."""
        with np.errstate(all="ignore"):
            return np.broadcast_to(np.asarray(self.run(NUMPY, values), dtype=np.float64), np.shape(values)).copy()

    def numpy_checked(self, values: Array) -> tuple[Array, NDArray[np.bool_]]:
        """`numpy`, and where a value on the way overflowed (or a negative power became 0).

        There the result may be finite and wrong: exp(x) * exp(x) * (exp(x) + exp(-x))**-2 is 0 at x = 385.
        """
        overflow = np.zeros(np.shape(values), dtype=np.bool_)
        with np.errstate(all="ignore"):
            cells = self._cells(NUMPY, values)
        for (node, _), cell in zip(self._nodes, cells, strict=True):
            if isinstance(cell, np.ndarray):  # not a constant, nor a (value, condition) pair
                overflow |= ~np.isfinite(cell)
                if node.is_Pow and node.args[1].is_negative:
                    overflow |= cell == 0
        return np.broadcast_to(np.asarray(cells[-1], dtype=np.float64), np.shape(values)).copy(), overflow

    def mp(self, value: Any) -> Any:
        """The value at `value` (an `mpf`), at mpmath's current precision."""
        return self.run(MPMATH, value)

    def arb(self, ball: Any) -> Any:
        """A ball that holds every value over `ball` (an `arb`), at flint's current precision."""
        return self.run(ARB, ball)

    def acb(self, ball: Any) -> Any:
        """The same over a complex `acb`; not finite wherever the expression is not analytic on it."""
        return self.run(ACB, ball)
