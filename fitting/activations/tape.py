"""Evaluate a sympy expression without generating code: a list of instructions, run in one of four arithmetics."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol

from actfit.fitting.activations.arithmetics import ACB, ARB, MPMATH, Arithmetic
from actfit.fitting.activations.floats import NUMPY, NUMPY32
from actfit.fitting.activations.functions import removable, x
from actfit.fitting.activations.removable import Near, near, value_of

Array = NDArray[np.float64]


class Tape:
    """The instructions of one expression in `variables` (default: x), common subexpressions computed once.

    Values are given in the order of the variables.
    """

    def __init__(self, expression: Expr, *variables: Symbol) -> None:
        self.expression = expression
        self.variables = variables or (x,)
        self._nodes: list[tuple[Expr, tuple[int, ...]]] = []
        self._index: dict[Expr, int] = {}
        # For each node: the index of the variable that it is, or -1; its operation; the cells of the operands.
        self._programs: dict[str, list[tuple[int, Callable[..., Any], tuple[int, ...]]]] = {}
        self._add(expression)

    def _add(self, node: Expr) -> int:
        if node not in self._index:
            inside = (x,) if isinstance(node, removable) else node.args
            if node.is_Pow and node.args[1].is_Integer:
                inside = node.args[:1]  # the exponent is part of the operation
            operands = tuple(self._add(argument) for argument in inside)
            self._nodes.append((node, operands))
            self._index[node] = len(self._nodes) - 1
        return self._index[node]

    def run(self, arithmetic: Arithmetic, *values: Any) -> Any:
        """The expression at `values` of the variables, in that arithmetic."""
        return self._cells(arithmetic, *values)[-1]

    def _cells(self, arithmetic: Arithmetic, *values: Any) -> list[Any]:
        if len(values) != len(self.variables):
            raise ValueError(f"values must be {len(self.variables)}, got {len(values)}")
        program = self._programs.get(arithmetic.name)
        if program is None:
            program = self._programs[arithmetic.name] = [
                self._step(node, arithmetic, operands) for node, operands in self._nodes
            ]
        cells: list[Any] = []
        for place, operation, operands in program:
            cells.append(operation(*[cells[i] for i in operands]) if place < 0 else values[place])
        return cells

    def _step(
        self, node: Expr, arithmetic: Arithmetic, operands: tuple[int, ...]
    ) -> tuple[int, Callable[..., Any], tuple[int, ...]]:
        operation = _operation(node, arithmetic) if operands else partial(arithmetic.constant, node)
        return self.variables.index(node) if node in self.variables else -1, operation, operands

    def numpy(self, *values: Array | float) -> Array:
        """Float64 values at each of `values`, which broadcast; overflow and invalid operations are silent."""
        shape = np.broadcast_shapes(*map(np.shape, values))
        with np.errstate(all="ignore"):
            return np.broadcast_to(np.asarray(self.run(NUMPY, *values), dtype=np.float64), shape).copy()

    def numpy32(self, *values: Any) -> NDArray[np.float32]:
        """`numpy` with every operation and constant rounded to float32, without fused operations."""
        shape = np.broadcast_shapes(*map(np.shape, values))
        with np.errstate(all="ignore"):
            result = self.run(NUMPY32, *(np.asarray(value, dtype=np.float32) for value in values))
        return np.broadcast_to(np.asarray(result, dtype=np.float32), shape).copy()

    def numpy_checked(self, values: Array) -> tuple[Array, NDArray[np.bool_]]:
        """`numpy`, and a mask of points where an intermediate value overflowed (or a negative power became 0).

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

    def mp(self, *values: Any) -> Any:
        """The value at `values` (`mpf`), at mpmath's current precision."""
        return self.run(MPMATH, *values)

    def arb(self, *balls: Any) -> Any:
        """A ball that holds every value over `balls` (`arb`), at flint's current precision."""
        return self.run(ARB, *balls)

    def acb(self, *balls: Any) -> Any:
        """The same over complex `acb`; not finite wherever the expression is not analytic on it."""
        return self.run(ACB, *balls)


def _operation(node: Expr, arithmetic: Arithmetic) -> Callable[..., Any]:
    if isinstance(node, removable):
        return lambda value: value_of(node, arithmetic, value, _run)
    return arithmetic.operation(node)


@lru_cache(maxsize=4096)
def _tape_of(expression: Expr) -> Tape:
    return Tape(expression)


def _run(expression: Expr, arithmetic: Arithmetic, value: Any) -> Any:
    return _tape_of(expression).run(arithmetic, value)


def near_point(node: removable) -> Near:
    """The polynomial that stands for a `removable` near its point."""
    return near(node, _run)
