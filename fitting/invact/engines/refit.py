"""Better constants for a formula: least squares within bounds on the largest error, or the least largest error."""

import math
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, linprog
from sympy import Expr

from actfit.fitting.activations.tape import Array, Tape
from actfit.fitting.invact.engines.problem import HUGE, Squares, Target
from actfit.fitting.invact.formula import Form, derivative_by
from actfit.fitting.invact.variable import S, Y

ROUNDS = 25  # of the minimax polish, which converges quadratically and seldom needs all
ENOUGH = 0.01  # of the largest error: the gain that a further round must promise


class Model(Protocol):
    """A formula at the points of a target, as a function of its constants (k,)."""

    def error(self, constants: Array) -> Array:
        """q - value, (n,)."""

    def jacobian(self, constants: Array) -> Array:
        """The derivatives of q by the constants, (n, k)."""


class FormModel:
    """The model of any form, by symbolic derivatives."""

    def __init__(self, form: Form, target: Target) -> None:
        self.target = target
        self._variables = (Y, S, *form.constants)
        self._tapes = [
            self._tape(form.expression),
            *(self._tape(derivative_by(form.expression, c)) for c in form.constants),
        ]

    def _tape(self, expression: Expr) -> Tape:
        return Tape(expression, *self._variables)

    def error(self, constants: Array) -> Array:
        """q - value, (n,)."""
        return self._tapes[0].numpy(self.target.y, self.target.s, *constants) - self.target.value

    def jacobian(self, constants: Array) -> Array:
        """The derivatives of q by the constants, (n, k); 0 where one is not finite."""
        columns = [tape.numpy(self.target.y, self.target.s, *constants) for tape in self._tapes[1:]]
        return np.nan_to_num(np.stack(columns, axis=1), nan=0.0, posinf=0.0, neginf=0.0)


def refit(form: Form, target: Target) -> Form:
    """The same formula with better constants."""
    values = improve(FormModel(form, target), target, np.array(form.values))
    return replace(form, values=tuple(float(value) for value in values))


def improve(model: Model, target: Target, start: Array) -> Array:
    """Constants that suit the target better than `start`: a local optimum near it, or `start` itself."""
    if not len(start) or not math.isfinite(target.cost_of(model.error(start))):
        return start
    return _largest(model, start) if target.squares is None else _mean_square(model, target, target.squares, start)


def _mean_square(model: Model, target: Target, squares: Squares, start: Array) -> Array:
    def residuals(constants: Array) -> Array:
        return target.residuals(squares, np.nan_to_num(model.error(constants), nan=HUGE))

    def jacobian(constants: Array) -> Array:
        error = np.nan_to_num(model.error(constants), nan=HUGE)
        return target.residual_jacobian(squares, error, model.jacobian(constants))

    with np.errstate(all="ignore"):
        result = least_squares(
            residuals, start, jacobian, method="lm", x_scale="jac", max_nfev=30, xtol=1e-9, ftol=1e-6
        )
    better = result.cost <= 0.5 * float(np.sum(residuals(start) ** 2))
    return np.asarray(result.x if better else start)


def _largest(model: Model, start: Array) -> Array:
    """The least largest error, by linear programmes about the current constants in a trust region (Osborne, Watson).

    A programme is posed in the orthonormal columns of a QR factorisation and in units of the current error: in raw
    powers of s, double precision would end at errors of 1e-6.
    """
    constants, radius = start, math.inf
    error = model.error(constants)
    size = float(np.abs(error).max())
    for _ in range(ROUNDS):
        basis, triangle = np.linalg.qr(model.jacobian(constants))
        diagonal = np.abs(np.diag(triangle))
        if size == 0.0 or diagonal.min() <= 1e-13 * diagonal.max():
            break
        unit = size * len(error) ** 0.5
        step, promised = _step(basis * len(error) ** 0.5, error / size, radius)
        if step is None or promised > 1.0 - ENOUGH:
            break
        moved = constants + np.linalg.solve(triangle, step) * unit
        moved_error = np.nan_to_num(model.error(moved), nan=math.inf)
        moved_size, length = float(np.abs(moved_error).max()), float(np.abs(step).max())
        if moved_size < size * (1.0 - 0.1 * (1.0 - promised)):
            constants, error, size = moved, moved_error, moved_size
            radius = max(radius, 2.0 * length) if math.isfinite(radius) else radius
        else:
            radius = length / 4.0
            if radius < 1e-6:
                break
    return constants


def _step(basis: Array, error: Array, radius: float) -> tuple[NDArray[np.float64] | None, float]:
    """The step that minimises max |error + basis @ step|, no component above `radius`, and that minimum."""
    rows, columns = basis.shape
    ones = np.ones((rows, 1))
    limits = [(-radius, radius)] * columns if math.isfinite(radius) else [(None, None)] * columns
    result = linprog(
        np.eye(columns + 1)[-1],
        A_ub=np.block([[basis, -ones], [-basis, -ones]]),
        b_ub=np.concatenate([-error, error]),
        bounds=[*limits, (0.0, None)],
        method="highs",
    )
    return (result.x[:-1], float(result.x[-1])) if result.status == 0 else (None, 1.0)
