"""Whether emitted text overflows on the way to a finite value: the text is run on numbers of all sizes, and compared.

A derivative may be 0.04 where the text computes inf*0, and PyTorch's own backward may be finite there. If no rewrite
mends that, the expression is refused with the point; beyond the range of activations the module's header tells it.
"""

import math
from collections.abc import Sequence

import numpy as np
import sympy
from numpy.typing import NDArray
from sympy import Expr

from actfit.codegen import infinities
from actfit.codegen.emulation import Emulation
from actfit.codegen.function import Function, numbers
from actfit.codegen.module import with_primitives
from actfit.codegen.subject import Subject
from actfit.fitting.activations.balls import flint
from actfit.fitting.activations.calculus import PRECISION, values
from actfit.fitting.activations.tape import Tape
from actfit.fitting.errors import InputError, shortened

LARGEST, LEAST = 3.4028234663852886e38, 1.1754943508222875e-38  # of float32, the least normal one
CLEAR = 2.0**118  # a thousandth of LARGEST: nearer to it sums of finite numbers may overflow
FARTHEST = 65504.0  # the largest float16: activations of any dtype are assumed to be within
AGREEMENT = 2.0**-6  # relative error that shows an overflow; that of float32 is far smaller
Points = NDArray[np.float64]


def points(dtype: str) -> Points:
    """Numbers of all sizes of the dtype; denser where exponentials overflow."""
    near = np.concatenate([np.arange(0.0, 120.0, 0.25), np.arange(120.0, 800.0, 2.0)])
    sizes = 2.0 ** np.arange(-24.0 if dtype == "float16" else -126.0, 16.0 if dtype == "float16" else 128.0)
    right = np.concatenate([near, sizes, [FARTHEST]])
    return np.unique(np.concatenate([-right, right]))


def notes_on_reach(subject: Subject, dtype: str, target: str, functions: Sequence[Function]) -> list[str]:
    """A line for the module's header where `reach` is finite."""
    limit = reach(subject, dtype, target, functions)
    return [f"For |x| below {limit:.4g}: from there on float32 overflows on the way."] if limit < math.inf else []


def reach(subject: Subject, dtype: str, target: str, functions: Sequence[Function]) -> float:
    """Up to which |x| the emitted forward and derivative, among `functions`, have the right values.

    Raises `InputError` where that is not as far as `FARTHEST`.
    """
    known = _by_name(functions, dtype, target)
    expressions = {"forward": subject.activation.f_expression, "derivative": subject.activation.d1_expression}
    x, limit, params = points(dtype), math.inf, tuple(subject.activation.params[name] for name in subject.parameters)
    x = x[np.abs(values(Tape(subject.activation.f_expression), x)) <= CLEAR]
    for function in functions:
        if function.name in expressions and not _stock(function):
            wrong = _wrong(Emulation(known), function.name, expressions[function.name], x, params)
            if wrong is not None:
                limit = min(limit, _judged(function.name, subject, *wrong))
    return limit


def _stock(function: Function) -> bool:
    """Whether it calls torch's own, which the emulation does not know."""
    return any("torch.nn.functional" in line for line in function.body)


def with_limits(subject: Subject, dtype: str, target: str, functions: Sequence[Function]) -> list[Function]:
    """The functions; those that are NaN at an infinity where there is a limit give the limit."""
    known = _by_name(functions, dtype, target)
    return [infinities.with_limits(subject, function.name, known) for function in functions]


def _by_name(functions: Sequence[Function], dtype: str, target: str) -> dict[str, Function]:
    return {function.name: function for function in with_primitives(functions, dtype, target)}


def _wrong(
    emulation: Emulation, name: str, expression: Expr, x: Points, params: tuple[float, ...]
) -> tuple[float, float, float] | None:
    """The point nearest to 0 where the text is wrong by overflow, the text's value there, and the right one."""
    got = emulation.run(name, x, params).astype(np.float64)
    tape = Tape(expression)
    exact = np.broadcast_to(values(tape, x), x.shape)
    with np.errstate(all="ignore"):
        held = np.abs(exact) <= CLEAR
        scale = np.max(np.abs(exact[held & (np.abs(x) <= 8)]), initial=0.0)
        far = emulation.lost & ~(np.abs(got - exact) <= AGREEMENT * np.abs(exact) + AGREEMENT**2 * scale)
    for i in sorted(np.flatnonzero(held & (~np.isfinite(got) | far)), key=lambda i: (abs(x[i]), x[i])):
        with flint.ctx.workprec(PRECISION):  # float64 may have lost digits, or underflowed
            ball = tape.arb(flint.arb(float(x[i])))
        value = float(ball.mid())
        if not ball.is_finite() or ball.rad() > 1e-9 * abs(ball.mid()):
            continue
        if not abs(got[i] - value) <= AGREEMENT * abs(value) + AGREEMENT**2 * scale:
            return float(x[i]), float(got[i]), value
    return None


def _judged(name: str, subject: Subject, at: float, got: float, value: float) -> float:
    what = "f" if name == "forward" else "f'"
    if abs(at) <= FARTHEST:
        raise InputError(
            f"expression must not overflow on the way to {what}, got {got:g} for {value:.4g} at x = {at:g} in"
            f" {subject.activation.expr}; write it with sigmoid, softplus, tanh, sech or expm1, or exponents below 0"
        )
    return abs(at)


def check_numbers(expression: Expr) -> None:
    """Raise `InputError` for a number that float32 does not have."""
    for number in numbers(expression).atoms(sympy.Number):
        if number and not LEAST <= abs(number) <= LARGEST:
            raise InputError(
                f"a formula's numbers must be 0 or from {LEAST:.2g} to {LARGEST:.2g} in size, as float32 has them, got"
                f" {shortened(str(sympy.Float(number, 3)).lower(), 40)} in it or in its derivative"
            )
