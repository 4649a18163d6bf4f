"""What kernels compute at infinite x: the limit of f or f', where the plain text gives NaN, such as -inf*sigmoid(-inf).

There x is bounded: so far out that f and f' have their limits, and so near that nothing overflows. What other
expressions than the catalogue's are rewritten to may have quotients and choices, in which a bound of x is not enough:
`given` chooses the limit where x is infinite and the text is wrong.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from sympy import Expr, Symbol

from codegen.choices import quotient, select
from codegen.emulation import Emulation
from codegen.function import Function, Writer
from codegen.heads import EmittedHead, patched
from codegen.subject import Subject
from fitting.activations.activation import Limits
from fitting.activations.catalogue import CATALOGUE
from fitting.activations.functions import removable, x
from fitting.activations.tape import Tape

_Z = Symbol("z", real=True)
# In float32 neither x, nor x**2, x**3 or x**4 overflows.
_FAR = (2.0**126, 2.0**62, 2.0**41, 2.0**30)
# Of a limit, from the value of the text; what float32 cannot tell from 0.
_AGREEMENT, _LEAST = 2.0**-6, 2.0**-126
# Where torch's own functions give NaN though there is a limit, at -inf and inf; gelu at inf by its vector code alone.
STOCK_NAN = {
    "hardswish": (True, False),
    "softsign": (True, True),
    "gelu": (True, True),
    "gelu_tanh": (True, False),
    "silu": (True, False),
    "mish": (True, False),
}


def forward(subject: Subject, writer: Writer) -> Expr:
    """f for the writer, which has been given the bound of x if there is one."""
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


def given(subject: Subject, name: str, known: Mapping[str, Function]) -> Function:
    """The emitted forward or derivative, among `known` functions, with its limits at ±inf where its text is wrong."""
    function = known[name]
    if name not in ("forward", "derivative") or _shipped(subject):
        return function
    params = tuple(subject.activation.params[one] for one in subject.parameters)
    got = Emulation(known).run(name, np.array([-np.inf, np.inf]), params)
    limits = subject.activation.limits if name == "forward" else subject.activation.derivative_limits
    *lines, last = function.body
    wrong = [
        (end, limit)
        for end, limit, one in zip(("-inf", "inf"), (limits.left, limits.right), map(float, got), strict=True)
        if math.isfinite(limit) and not abs(one - limit) <= _AGREEMENT * abs(limit) + _LEAST
    ]
    for end, limit in wrong:
        lines.append(f"y = {last.removeprefix('return ')}")
        if function.jit:
            last = f'return tl.where(x == float("{end}"), {limit!r}, y)'
        else:
            last = f"return torch.where(x == {end.replace('inf', 'torch.inf')}, {limit!r}, y)"
    return replace(function, body=(*lines, last))


def _bounded(writer: Writer, printed: Expr, plain: Expr, limits: Limits) -> Expr:
    """`printed`, which is `plain` or that rewritten, with x bounded where that takes a NaN away.

    Outside of functions first: what f and f' have in common, such as a sigmoid, is then computed once for both.
    """
    if plain.has(removable, patched, quotient, select, EmittedHead):  # whose x is no symbol, or that a tape has not
        return printed
    ends = [
        (sign, limit)
        for sign, limit in ((-1.0, limits.left), (1.0, limits.right))
        if math.isfinite(limit) and math.isnan(Tape(plain).numpy32(sign * math.inf))
    ]
    for take in (_outside, lambda expression: expression.xreplace({x: _Z})) if ends else ():
        tape = Tape(take(plain), x, _Z)
        far = [one for sign, limit in ends if (one := _far(tape, sign, limit)) is not None]
        bounded = take(printed)
        if len(far) == len(ends) and bounded.has(_Z):
            name = writer.free("z")
            writer.lines.append(f"{name} = {_clamped(writer, far)}")
            return bounded.xreplace({_Z: Symbol(name, real=True)})
    return printed


def _outside(expression: Expr) -> Expr:
    """The expression with z in place of x, but in the arguments of functions."""
    if expression == x:
        return _Z
    if expression.is_Add or expression.is_Mul or expression.is_Pow:
        return expression.func(*map(_outside, expression.args))
    return expression


def _far(tape: Tape, sign: float, limit: float) -> float | None:
    return next((sign * far for far in _FAR if tape.numpy32(sign * math.inf, sign * far) == np.float32(limit)), None)


def _clamped(writer: Writer, far: list[float]) -> str:
    if writer.target == "torch":
        return f"torch.clamp(x, {', '.join(f'min={one!r}' if one < 0 else f'max={one!r}' for one in far)})"
    text = "x"
    for one in far:
        name = "maximum" if one < 0 else "minimum"
        writer.printer.used.add(name)
        text = f"{name}({text}, {one!r})"
    return text


def stock(name: str, call: str, limits: Limits) -> list[str]:
    """The lines of a function that calls torch's own, whose NaN at an infinity becomes the limit."""
    ends = (("-torch.inf", limits.left), ("torch.inf", limits.right))
    wrong = [end for end, is_nan in zip(ends, STOCK_NAN.get(name, (False, False)), strict=True) if is_nan]
    if not wrong:
        return [f"return {call}"]
    fills = [f"y.masked_fill_(x == {at}, {at if math.isinf(limit) else repr(limit)})" for at, limit in wrong]
    return [f"y = {call}", *fills[:-1], f"return {fills[-1]}"]
