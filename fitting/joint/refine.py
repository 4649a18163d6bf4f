"""From the best borders on a grid to a stationary point of the continuous problem.

The unknowns are the borders b_k; each level m_k is the mean of F = (f', sqrt(λ) f) on its interval, of mass μ_k. A
border may move until F is as far from both its levels: r_k = |F - m_k|² - |F - m_{k+1}|² = 0 at b_k. (w r_k is the
derivative of the error.) r_k depends on its own border and its two neighbours, so Newton's step solves a tridiagonal
system.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_banded

from actfit.fitting.activations.tape import Array
from actfit.fitting.joint.plane import Moments, Plane, squared

MAX_ROUNDS = 60
DAMPED = (1.0, 0.5, 0.125, 1 / 64)  # the parts of Newton's step that are tried
SETTLED = 1e-13  # of the domain: a move by less is rounding
EQUAL = 4 * np.finfo(np.float64).eps  # relative: an error that grows by less has not grown


def error_of(plane: Plane, borders: Array) -> float:
    """∫ |F - q|² w, q being F's mean on each interval."""
    return float(np.sum(plane.intervals(borders).spread))


def refine(plane: Plane, borders: Array) -> Array:
    """Increasing borders at a stationary point that is at least as good; borders at leaps of the curve stay there."""
    width = plane.domain[1] - plane.domain[0]
    free = ~np.isin(borders, plane.curve.edges[1:-1][plane.leaps.any(axis=1)])
    error = error_of(plane, borders)
    for _ in range(MAX_ROUNDS):
        step = np.where(free, _newton_step(plane, borders, free), 0.0)
        for part in DAMPED:
            moved = borders + part * step
            if np.any(np.diff(np.concatenate([plane.domain[:1], moved, plane.domain[1:]])) <= 0):
                continue
            reached = error_of(plane, moved)
            if reached <= error * (1 + EQUAL):
                break
        else:
            return borders
        borders, error = moved, min(error, reached)
        if np.max(np.abs(part * step), initial=0.0) <= SETTLED * width:
            return borders
    return borders


def _newton_step(plane: Plane, borders: Array, free: NDArray[np.bool_]) -> Array:
    """What to add to the borders; 0 where the system cannot be solved."""
    moments, runs = plane.intervals(borders), plane.curve.run_at(borders)
    points, density = plane.points(borders, runs), plane.density(borders)
    left, right = _sides(moments)
    before, after = points - left.mean, points - right.mean
    with np.errstate(all="ignore"):
        diagonal = 2 * np.sum((right.mean - left.mean) * plane.tangents(borders, runs), axis=-1)
        diagonal -= 2 * density * (squared(before) / left.mass + squared(after) / right.mass)
        # m_k moves by w (F - m_k) / μ_k for a unit of the border at its right end, the other way for that at its left.
        lower = 2 * density[:-1] * np.sum(before[1:] * after[:-1], axis=-1) / left.mass[1:]
        upper = 2 * density[1:] * np.sum(after[:-1] * before[1:], axis=-1) / right.mass[:-1]
        residual = squared(before) - squared(after)
    fixed = ~free | ~np.isfinite(diagonal) | (diagonal == 0) | ~np.isfinite(residual)
    diagonal[fixed], residual[fixed] = 1.0, 0.0
    band = np.zeros((3, borders.size))
    band[0, 1:], band[1], band[2, :-1] = np.where(fixed[:-1], 0.0, upper), diagonal, np.where(fixed[1:], 0.0, lower)
    try:
        step = solve_banded((1, 1), np.nan_to_num(band, nan=0.0, posinf=0.0, neginf=0.0), -residual)
    except np.linalg.LinAlgError:
        return np.zeros_like(borders)
    return np.where(np.isfinite(step), step, 0.0)


def _sides(moments: Moments) -> tuple[Moments, Moments]:
    """The moments of the intervals left of each border, and of those right of it."""
    values = moments.mass, moments.mean, moments.spread
    return Moments(*(value[:-1] for value in values)), Moments(*(value[1:] for value in values))
