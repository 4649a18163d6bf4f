"""PyTorch's element-wise operations by their names, on symbolic expressions.

Each takes the arguments that torch gives it, by torch's names; `operand` turns operands into expressions. At a kink
the branch that holds is the one whose derivative torch's backward uses.
"""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import Parameter, Signature, signature

import sympy
from sympy import Expr, Integer, Rational

from actfit.codegen import piecewise
from actfit.codegen.names import DROPOUT, refused
from actfit.codegen.operands import condition_of, negated, number, operand
from actfit.codegen.piecewise import Condition, at_most, below, both, compared, composed, either, opposite, select
from actfit.codegen.rewrites import erfc
from actfit.fitting.activations import get
from actfit.fitting.activations.catalogue import CATALOGUE
from actfit.fitting.activations.functions import Phi, expm1, log1p, softplus
from actfit.fitting.errors import InputError

Operation = Callable[..., Expr]
LARGEST_POWER = 64
CLAMP_PASSES: ContextVar[bool] = ContextVar("clamp_passes", default=False)
"""Whether the derivative of clamp is 1 at its ends, as torch's is up to 2.13; since 2.14 it is 0."""


def _unary(function: Callable[[Expr], Expr]) -> Operation:
    return lambda input: function(operand(input))


def _add(input: object, other: object, *, alpha: object = 1) -> Expr:
    return operand(input) + number(alpha, "alpha") * operand(other)


def _sub(input: object, other: object, *, alpha: object = 1) -> Expr:
    return operand(input) + number(alpha, "alpha") * negated(operand(other))


def _div(input: object, other: object, *, rounding_mode: object = None) -> Expr:
    if rounding_mode is not None:
        raise InputError(f"rounding_mode must be left out, got {rounding_mode!r}: a rounded quotient has no gradient")
    below_it = operand(other)
    if below_it.is_zero:
        raise InputError("a divisor must not be 0, got 0")
    return operand(input) / below_it


def _pow(input: object, exponent: object) -> Expr:
    base, power = operand(input), operand(exponent)
    if power.free_symbols:
        if base.free_symbols or not base > 0:
            raise InputError(
                "a power must have a number as its exponent, or a positive number as its base, got neither"
            )
    elif abs(power) > LARGEST_POWER:
        raise InputError(f"an exponent must be from -{LARGEST_POWER} to {LARGEST_POWER}, got {float(power):g}; use exp")
    return base**power


def _maximum(input: object, other: object) -> Expr:
    a, b = operand(input), operand(other)
    return a if a == b else piecewise.halved(a, b, compared(below, b, a), compared(below, a, b))


def _minimum(input: object, other: object) -> Expr:
    a, b = operand(input), operand(other)
    return a if a == b else piecewise.halved(a, b, compared(below, a, b), compared(below, b, a))


def _extremum(name: str, run: Operation) -> Operation:
    def of_two(input: object, other: object = None) -> Expr:
        if not isinstance(other, Expr) and not hasattr(other, "shape"):  # none, or a dimension
            raise refused(name, ())
        return run(input, other)

    return of_two


def _clamp(input: object, min: object = None, max: object = None) -> Expr:
    result = u = operand(input)
    if isinstance(min, Expr) or isinstance(max, Expr):
        raise InputError("min and max must be numbers, got what is made from x; use torch.maximum or torch.minimum")
    low, high = (None if limit is None else number(limit, name) for name, limit in (("min", min), ("max", max)))
    if low is None and high is None:
        raise InputError("clamp must be given min, max or both, got none")
    if low is not None and high is not None and low > high:
        raise InputError(f"min must be at most max, got {min} and {max}")
    outside = below if CLAMP_PASSES.get() else at_most
    if high is not None:
        result = select(compared(outside, high, u), high, result)
    return result if low is None else select(compared(outside, u, low), low, result)


def _where(condition: object, input: object = None, other: object = None) -> Expr:
    if not isinstance(condition, Condition) and isinstance(input, Condition):  # x.where(condition, other)
        condition, input = input, condition
    if input is None or other is None:
        raise InputError("where must be given a condition and two values, got fewer")
    return select(condition_of(condition, "where"), operand(input), operand(other))


def _masked_fill(input: object, mask: object, value: object) -> Expr:
    return select(condition_of(mask, "masked_fill"), operand(value), operand(input))


@dataclass(frozen=True)
class _Catalogued:
    """A function of the catalogue, called as torch's counterpart is."""

    function: str

    @property
    def __signature__(self) -> Signature:
        kind = Parameter.POSITIONAL_OR_KEYWORD
        options = {**CATALOGUE[self.function].params, "inplace": False}
        named = [Parameter(name, kind, default=default) for name, default in options.items()]
        return Signature([Parameter("input", kind), *named])

    def __call__(self, input: object, inplace: bool = False, **params: object) -> Expr:
        if inplace:
            raise InputError(f"inplace must be False, got True for {self.function}: nothing is changed in place")
        values = {name: float(number(value, name)) for name, value in params.items()}
        return composed(get(self.function, **values).f_expression, operand(input))


def _gelu(input: object, approximate: str = "none") -> Expr:
    if approximate not in ("none", "tanh"):
        raise InputError(f"approximate must be 'none' or 'tanh', got {approximate!r}")
    return _Catalogued("gelu" if approximate == "none" else "gelu_tanh")(input)


def _softplus(input: object, beta: object = 1.0, threshold: object = 20.0) -> Expr:
    if number(threshold, "threshold") < 20:
        raise InputError(f"threshold must be at least 20, where it changes no digit of float32, got {threshold}")
    return _Catalogued("softplus")(input, beta=beta)


def _dropout(name: str) -> Operation:
    def evaluated(input: object, p: object = 0.5, training: object = True, inplace: object = False) -> Expr:
        if inplace:
            raise InputError(f"inplace must be False, got True for {name}: nothing is changed in place")
        if training and p:
            raise refused(name, ())
        return operand(input)

    return evaluated


def _comparison(condition: type[Condition], turned: bool = False) -> Operation:
    def run(input: object, other: object) -> Expr:
        a, b = operand(input), operand(other)
        return compared(condition, b, a) if turned else compared(condition, a, b)

    return run


def _equal(input: object, other: object) -> Expr:
    a, b = operand(input), operand(other)
    return both(compared(at_most, a, b), compared(at_most, b, a))


def _joined(name: str, condition: type[Condition]) -> Operation:
    return lambda input, other: condition(condition_of(input, name), condition_of(other, name))


_UNARY: dict[str, Callable[[Expr], Expr]] = {
    **{name: getattr(sympy, name) for name in ("exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "erf")},
    "atan": sympy.atan,
    "erfc": erfc,
    "expm1": expm1,
    "log1p": log1p,
    "ndtr": Phi,
    "abs": piecewise.absolute,
    "sign": piecewise.sign,
    "neg": negated,
    "positive": lambda u: u,
    **{name: lambda u: u for name in ("clone", "contiguous")},
    "square": lambda u: u**2,
    "reciprocal": lambda u: 1 / u,
    "rsqrt": lambda u: u ** Rational(-1, 2),
    "exp2": lambda u: Integer(2) ** u,
    "log2": lambda u: sympy.log(u) / sympy.log(2),
    "log10": lambda u: sympy.log(u) / sympy.log(10),
    "zeros_like": lambda u: Integer(0),
    "ones_like": lambda u: Integer(1),
}
_PLAIN = {row.torch for row in CATALOGUE.values() if row.torch} - {"gelu", "softplus"}
ARITHMETIC: dict[str, Operation] = {
    **{name: _unary(function) for name, function in _UNARY.items()},
    **{name: _Catalogued(name) for name in sorted(_PLAIN)},
    "gelu": _gelu,
    "softplus": _softplus,
    "add": _add,
    "sub": _sub,
    "rsub": lambda input, other, *, alpha=1: _sub(other, input, alpha=alpha),
    "mul": lambda input, other: operand(input) * operand(other),
    "div": _div,
    "rdiv": lambda input, other: _div(other, input),
    "pow": _pow,
    "rpow": lambda input, other: _pow(other, input),
    "maximum": _maximum,
    "minimum": _minimum,
    "max": _extremum("max", _maximum),
    "min": _extremum("min", _minimum),
    "clamp": _clamp,
    "clamp_min": lambda input, min: _clamp(input, min=min),
    "clamp_max": lambda input, max: _clamp(input, max=max),
    "logaddexp": lambda input, other: operand(other) + softplus(operand(input) - operand(other)),
    "full_like": lambda input, fill_value: number(fill_value, "fill_value"),
    **{name: _dropout(name) for name in sorted(DROPOUT)},
}
"""Operations that give numbers; at least one argument must be made from x and be no condition."""
CONSTANT = {"zeros_like", "ones_like", "full_like"}
"""Operations whose result does not depend on the values of x."""
SELECTIONS: dict[str, Operation] = {"where": _where, "masked_fill": _masked_fill}
COMPARISONS: dict[str, Operation] = {
    "lt": _comparison(below),
    "le": _comparison(at_most),
    "gt": _comparison(below, turned=True),
    "ge": _comparison(at_most, turned=True),
    "eq": _equal,
    "ne": lambda input, other: opposite(_equal(input, other)),
    "logical_and": _joined("logical_and", both),
    "logical_or": _joined("logical_or", either),
    "logical_not": lambda input: opposite(condition_of(input, "logical_not")),
}
"""Operations that give conditions."""
OPERATIONS = {**ARITHMETIC, **SELECTIONS, **COMPARISONS}


def apply(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Expr:
    """The result of the operation `name`. Raises `InputError` for an unknown name and for wrong arguments."""
    operation = OPERATIONS.get(name)
    if operation is None:
        raise refused(name, OPERATIONS)
    try:
        given = signature(operation).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise InputError(f"{name} must be called with arguments that are known here: {error}") from None
    return operation(**given)
