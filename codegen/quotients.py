"""Quotients such as sin(x)/x: a polynomial next to where they are 0/0, the plain quotient elsewhere.

`patches` runs before a definition is differentiated, `polynomials` afterwards. The plain quotient is rewritten and
differentiated as any other, so that it does not overflow where its value does not.
"""

from collections.abc import Callable

from sympy import Abs, Expr, Float, Function, Integer

from actfit.codegen.piecewise import below, select
from actfit.codegen.sympy_functions import patched
from actfit.fitting.activations.functions import removable, x
from actfit.fitting.activations.tape import near_point
from actfit.fitting.errors import InputError

LEAST = 2.0**-30  # terms below this share of the largest are left out


def patches(expression: Expr, spelled: Callable[[Expr], Expr]) -> Expr:
    """The expression rewritten by `spelled`; each `removable` becomes `patched`, its plain quotient rewritten."""
    slots = {node: Function(f"slot{i}")(x) for i, node in enumerate(_removables(expression))}
    back = {}
    for node, slot in slots.items():
        above, base, power, *_ = node.args
        back[slot] = patched(spelled(above / base**power), node)
    return spelled(expression.xreplace(slots)).xreplace(back)


def _removables(expression: Expr) -> list[Expr]:
    if isinstance(expression, removable):
        return [expression]
    return list(dict.fromkeys(node for part in expression.args for node in _removables(part)))


def polynomials(expression: Expr) -> Expr:
    """Each `patched` as a `select`: the polynomial in x - point within its radius, the plain quotient beyond."""
    if isinstance(expression, patched):
        plain, node = expression.args
        if not isinstance(node, removable):
            return node
        close = near_point(node)
        t = x - node.args[3]
        return select(below(Abs(t), Float(close.radius, 17)), _polynomial(close.coefficients, close.radius, t), plain)
    return expression.func(*map(polynomials, expression.args)) if expression.args else expression


def _polynomial(coefficients: tuple[float, ...], radius: float, t: Expr) -> Expr:
    """The polynomial by Horner's rule; an even or odd one in t**2."""
    sizes = [abs(coefficient) * radius**k for k, coefficient in enumerate(coefficients)]
    if not any(sizes):
        raise InputError(
            f"a quotient must not vanish so fast where it is 0/0, got one whose first {len(sizes)} Taylor"
            " coefficients are 0 there; write it without the quotient"
        )
    last = max(k for k, size in enumerate(sizes) if size > LEAST * max(sizes))
    kept = coefficients[: last + 1]
    start = next(k for k, coefficient in enumerate(kept) if coefficient)
    step = 2 if not any(kept[start + 1 :: 2]) else 1
    total: Expr = Integer(0)
    for coefficient in reversed(kept[start::step]):
        constant = Float(coefficient, 17)
        total = constant + t**step * total if total else constant
    return t**start * total
