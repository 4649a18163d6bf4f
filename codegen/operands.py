"""Arguments of PyTorch's operations as expressions: numbers, conditions, and what is made from x."""

import sys

from sympy import Add, Expr, Float, Integer, Rational

from actfit.codegen.piecewise import Condition, select
from actfit.fitting.errors import InputError


def number(value: object, what: str = "an operand") -> Expr:
    """The exact value of a number, or of a tensor with one element; small fractions as such, so that x**2.0 is x**2."""
    if getattr(value, "requires_grad", False):
        raise InputError(
            f"{what} must be a number, got a tensor that wants a gradient; keep it outside of the function"
        )
    if hasattr(value, "item") and hasattr(value, "shape"):
        if len(value.shape):
            raise InputError(f"{what} must be a number or made from x, got a tensor of shape {tuple(value.shape)}; "
                             "keep other tensors outside of the function, or write .item()")  # fmt: skip
        try:
            value = value.item()
        except RuntimeError as error:  # torch's, of tensors on meta and of fake ones
            raise InputError(f"{what} must be a number that can be read here, got a tensor: {error}") from None
    if not isinstance(value, int | float):
        raise InputError(f"{what} must be a number or made from x, got {value!r}")
    if not abs(value) <= sys.float_info.max:
        raise InputError(f"{what} must be finite, got {value if isinstance(value, float) else 'a larger whole number'}")
    exact = Rational(int(value) if isinstance(value, bool) else value)
    return exact if exact.q <= 64 and abs(exact) < 2**53 else Float(value, 30)


def operand(value: object) -> Expr:
    """An expression as it is, a condition as 0 or 1, anything else as a number."""
    if isinstance(value, Condition):
        return select(value, Integer(1), Integer(0))
    return value if isinstance(value, Expr) else number(value)


def negated(u: Expr) -> Expr:
    """-u; a sum is negated term by term, also where sympy is told not to multiply numbers into sums."""
    return Add(*(-term for term in Add.make_args(u)))


def condition_of(value: object, name: str) -> Condition:
    """A condition, as operation `name` needs one."""
    if not isinstance(value, Condition):
        got = "numbers" if isinstance(value, Expr) else repr(value)
        raise InputError(f"{name} must be given conditions such as x > 0, got {got}")
    return value
