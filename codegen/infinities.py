"""The values at infinite x: the limit of f or f', where the plain text gives NaN, such as -inf*sigmoid(-inf).

Kernels bound x there: so far out that f and f' have their limits, and so near that nothing overflows. Expressions that
are not the catalogue's may have quotients and `select`, for which bounding x is not enough: `with_limits` puts the
limit where x is infinite and the text is wrong.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from sympy import Expr, Symbol

from actfit.codegen.emulation import Emulation
from actfit.codegen.function import Function, Writer
from actfit.codegen.piecewise import quotient, select
from actfit.codegen.subject import Subject
from actfit.codegen.sympy_functions import RewriteFunction, patched
from actfit.fitting.activations.activation import Limits
from actfit.fitting.activations.catalogue import CATALOGUE
from actfit.fitting.activations.functions import removable, x
from actfit.fitting.activations.tape import Tape

_Z = Symbol("z", real=True)
# In float32 neither x, nor x**2, x**3 or x**4 overflows.
_FAR = (2.0**126, 2.0**62, 2.0**41, 2.0**30)
# Of a limit, how far the text's value may be from it; what float32 cannot tell from 0.
_AGREEMENT, _LEAST = 2.0**-6, 2.0**-126
# Whether torch's own function gives NaN at -inf and at inf, where f has a limit; gelu at inf in its vector code alone.
STOCK_NAN = {
    "hardswish": (True, False),
    "softsign": (True, True),
    "gelu": (True, True),
    "gelu_tanh": (True, False),
    "silu": (True, False),
    "mish": (True, False),
}


def forward(subject: Subject, writer: Writer) -> Expr:
    """f; the writer gets a line that bounds x, where f needs one."""
    plain = subject.activation.f_expression if _shipped(subject) else subject.forward
    return _bounded(writer, subject.forward, plain, subject.activation.limits)


def derivative(subject: Subject, writer: Writer) -> Expr:
    """f' likewise."""
    plain = subject.activation.d1_expression if _shipped(subject) else subject.derivative
    return _bounded(writer, subject.derivative, plain, subject.activation.derivative_limits)


def _shipped(subject: Subject) -> bool:
    """Whether it is a function of the catalogue, with any parameters."""
    row = CATALOGUE.get(subject.name)
    return row is not None and subject.activation.expr == row.expr


def with_limits(subject: Subject, name: str, known: Mapping[str, Function]) -> Function:
    """The function `name` of `known`; forward and derivative give their limits at ±inf where their text does not."""
    function = known[name]
    if name not in ("forward", "derivative") or _shipped(subject):
        return function
    params = tuple(subject.activation.params[parameter] for parameter in subject.parameters)
    got = Emulation(known).run(name, np.array([-np.inf, np.inf]), params)
    limits = subject.activation.limits if name == "forward" else subject.activation.derivative_limits
    *lines, last = function.body
    wrong = [
        (end, limit)
        for end, limit, value in zip(("-inf", "inf"), (limits.left, limits.right), map(float, got), strict=True)
        if math.isfinite(limit) and not abs(value - limit) <= _AGREEMENT * abs(limit) + _LEAST
    ]
    for end, limit in wrong:
        lines.append(f"y = {last.removeprefix('return ')}")
        if function.jit:
            last = f'return tl.where(x == float("{end}"), {limit!r}, y)'
        else:
            last = f"return torch.where(x == {end.replace('inf', 'torch.inf')}, {limit!r}, y)"
    return replace(function, body=(*lines, last))


def _bounded(writer: Writer, printed: Expr, plain: Expr, limits: Limits) -> Expr:
    """`printed`, which is `plain` rewritten, with x bounded if `plain` is NaN at an infinity where it has a limit.

    x outside of functions is bounded first: what f and f' share, such as a sigmoid, is then computed once for both.
    """
    if plain.has(removable, patched, quotient, select, RewriteFunction):  # a tape does not know them, or their x
        return printed
    ends = [
        (sign, limit)
        for sign, limit in ((-1.0, limits.left), (1.0, limits.right))
        if math.isfinite(limit) and math.isnan(Tape(plain).numpy32(sign * math.inf))
    ]
    for take in (_outside, lambda expression: expression.xreplace({x: _Z})) if ends else ():
        tape = Tape(take(plain), x, _Z)
        far = [bound for sign, limit in ends if (bound := _far(tape, sign, limit)) is not None]
        bounded = take(printed)
        if len(far) == len(ends) and bounded.has(_Z):
            name = writer.free("z")
            writer.lines.append(f"{name} = {_clamped(writer, far)}")
            return bounded.xreplace({_Z: Symbol(name, real=True)})
    return printed


def _outside(expression: Expr) -> Expr:
    """The expression with z in place of x, except in the arguments of functions."""
    if expression == x:
        return _Z
    if expression.is_Add or expression.is_Mul or expression.is_Pow:
        return expression.func(*map(_outside, expression.args))
    return expression


def _far(tape: Tape, sign: float, limit: float) -> float | None:
    return next((sign * far for far in _FAR if tape.numpy32(sign * math.inf, sign * far) == np.float32(limit)), None)


def _clamped(writer: Writer, far: list[float]) -> str:
    if writer.target == "torch":
        return f"torch.clamp(x, {', '.join(f'min={bound!r}' if bound < 0 else f'max={bound!r}' for bound in far)})"
    text = "x"
    for bound in far:
        name = "maximum" if bound < 0 else "minimum"
        writer.printer.used.add(name)
        text = f"{name}({text}, {bound!r})"
    return text


def stock(name: str, call: str, limits: Limits) -> list[str]:
    """The lines of a function that calls torch's own and replaces its NaN at an infinity by the limit."""
    ends = (("-torch.inf", limits.left), ("torch.inf", limits.right))
    wrong = [end for end, is_nan in zip(ends, STOCK_NAN.get(name, (False, False)), strict=True) if is_nan]
    if not wrong:
        return [f"return {call}"]
    fills = [f"y.masked_fill_(x == {at}, {at if math.isinf(limit) else repr(limit)})" for at, limit in wrong]
    return [f"y = {call}", *fills[:-1], f"return {fills[-1]}"]
