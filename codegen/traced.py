"""A stand-in for a tensor: a Python function of one tensor, called with it, returns its formula.

Operators, methods and functions of torch (by the protocol `__torch_function__`) are looked up by their names in
`actfit.codegen.operations`. An operation that is not element-wise in that one tensor is refused, by name and with
the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn

import sympy
from sympy import Expr
from sympy.core.parameters import distribute

from actfit.codegen.names import CASTS, RANDOM, REDUCTIONS, VALUES, by_name, hint, refused
from actfit.codegen.operands import operand
from actfit.codegen.operations import ARITHMETIC, CONSTANT, OPERATIONS, apply
from actfit.codegen.piecewise import Condition, unless_nan
from actfit.fitting.activations.functions import x
from actfit.fitting.errors import InputError

MAX_SIZE = 2000  # numbers, names and operations of an expression, written out
MAX_DEPTH = 60

# The dtype of a result: that of x, float32, or the wider one of these two.
OWN, SINGLE, WIDER = "own", "float32", "wider"
_NO_NUMBERS = (sympy.nan, sympy.zoo, sympy.oo, -sympy.oo, sympy.I)
_OPERATORS = [
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "pos", "abs"),
    *("lt", "le", "gt", "ge", "eq", "ne", "and", "rand", "or", "ror", "invert"),
    *("floordiv", "rfloordiv", "mod", "rmod", "matmul", "rmatmul", "xor", "rxor", "lshift", "rshift", "divmod"),
]
_IN_PLACE = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]


class Dtype:
    """The dtype of a stand-in; it may be used in casts only."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __eq__(self, other: object) -> NoReturn:
        raise InputError("a function must not branch on the dtype of its tensor, got a comparison with it")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise InputError(f"dtype must be used in casts such as .to(x.dtype) only, got dtype.{name}")


class Traced:
    """The stand-in: an expression in x, or a condition, the dtype that torch would give it, and whether it is made from
    the values of x; `recorded` says whether torch would record for backward what is done at that moment."""

    __array_ufunc__ = None  # numbers of numpy leave operators to it
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, expression: Expr, kind: str = OWN, varies: bool = True, recorded: Callable[[], bool] = lambda: True
    ) -> None:
        self.expression, self.kind, self.varies, self.recorded = expression, kind, varies, recorded

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> "Traced":
        return called(func.__name__, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "dtype":
            return Dtype(self.kind)
        if name in VALUES:
            raise _valued(name)
        if name in CASTS or by_name(name) in OPERATIONS:
            return partial(_method, name, self)
        if name in REDUCTIONS or name in RANDOM or name.endswith("_"):
            raise refused(name, ())
        raise InputError(
            f"a function must use its tensor in known element-wise operations alone, got .{name};"
            f" {hint(name, OPERATIONS)}"
        )


def called(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Traced:
    """The result of torch's operation `name`. Raises `InputError` for an unknown or unsuitable one, with the reason."""
    plain = by_name(name)
    traced = [value for value in (*args, *kwargs.values()) if isinstance(value, Traced)]
    if not all(stand_in.recorded() for stand_in in traced):
        raise InputError(
            f"an operation must be one that backward goes through, got {plain} within torch.no_grad() or a"
            " torch.autograd.Function; write a formula of torch's operations without them"
        )
    if plain in CASTS:
        return _cast(plain, args, kwargs)
    numbers = [stand_in for stand_in in traced if not isinstance(stand_in.expression, Condition)]
    if plain in ARITHMETIC and not numbers:
        raise InputError(
            f"arithmetic must be done on numbers, got {plain} of conditions; write .to(x.dtype) after them"
        )
    expression = apply(plain, [_bare(value) for value in args], {key: _bare(value) for key, value in kwargs.items()})
    _check_size(expression)
    varies = plain not in CONSTANT and any(stand_in.varies for stand_in in traced)
    recorded = next((stand_in.recorded for stand_in in traced), lambda: True)  # torch.cat([x]) has it in a list
    return Traced(expression, _joint({stand_in.kind for stand_in in numbers}), varies, recorded)


def _method(name: str, *args: object, **kwargs: object) -> Traced:
    return called(name, args, kwargs)


def _bare(value: object) -> object:
    return value.expression if isinstance(value, Traced) else value


def _joint(kinds: set[str]) -> str:
    """The kind of a result of operands of these kinds; torch makes float32 of conditions and numbers alone."""
    return kinds.pop() if len(kinds) == 1 else WIDER


def _cast(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Traced:
    """Everything is computed in float32 and rounded once, so a cast there and back changes nothing."""
    given = [*args, *kwargs.values()]
    dtype = "torch.float32" if name == "float" else given[1] if len(given) == 2 else None
    source = given[0]
    if isinstance(source, Traced) and isinstance(dtype, Traced | Dtype):
        return Traced(operand(source.expression), dtype.kind, source.varies, source.recorded)
    if isinstance(source, Traced) and str(dtype) == "torch.float32":
        return Traced(operand(source.expression), SINGLE, source.varies, source.recorded)
    got = name if len(given) < 2 else f"{name} with {', '.join(map(str, given[1:]))}"
    raise InputError(f"a cast must be to float32 or to the dtype of the function's tensor, got {got}; leave it out")


def _valued(name: str) -> InputError:
    return InputError(f"a function must not look at the values of its tensor, got {VALUES[name]}")


def _operator(name: str) -> Callable[..., Traced]:
    return lambda *operands: called(name, operands, {})


def _changed(name: str) -> InputError:
    return InputError(
        f"an operation must not change its tensor in place, got an augmented assignment ({name}); write"
        " y = y + ... instead of y += ..."
    )


def _refusing(error: Callable[[str], InputError], name: str) -> Callable[..., NoReturn]:
    def method(*_: object) -> NoReturn:
        raise error(name)

    return method


for _name in _OPERATORS:
    setattr(Traced, f"__{_name}__", _operator(_name))
for _name in VALUES:
    if _name.startswith("__"):
        setattr(Traced, _name, _refusing(_valued, _name))
for _name in _IN_PLACE:
    setattr(Traced, f"__i{_name}__", _refusing(_changed, f"i{_name}"))


def _check_size(expression: Expr) -> None:
    waiting, count = [(expression, 1)], 0
    while waiting:
        part, depth = waiting.pop()
        count += 1
        if count > MAX_SIZE or depth > MAX_DEPTH:
            raise InputError(
                f"a formula must have at most {MAX_SIZE} operations and names, written out, and {MAX_DEPTH} inside each"
                " other, got more; split the function into several"
            )
        waiting += [(inner, depth + 1) for inner in part.args]


@dataclass(frozen=True)
class Trace:
    """The results of a function as expressions in x, the dtype of each, and whether they came in a tuple."""

    expressions: tuple[Expr, ...]
    kinds: tuple[str, ...]
    several: bool


def trace(
    function: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] = MappingProxyType({}),
    recorded: Callable[[], bool] = lambda: True,
) -> Trace:
    """The function's formulas, by calling it with a stand-in and these further arguments.

    Raises `InputError` for an operation that is not element-wise in its one tensor, and for one done where `recorded()`
    says that torch does not record it for backward.
    """
    with distribute(False):  # (x - 3)*100 has digits that 100*x - 300 loses
        returned = _called(function, Traced(x, recorded=recorded), args, kwargs)
    several = type(returned) is tuple
    results = returned if isinstance(returned, tuple) and several else (returned,)
    if not results:
        raise InputError("a function must give at least one result, got an empty tuple")
    checked = [_checked(result) for result in results]
    return Trace(tuple(map(_value, checked)), tuple(result.kind for result in checked), several)


def _called(
    function: Callable[..., object], tensor: Traced, args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    try:
        return function(tensor, *args, **kwargs)
    except TypeError as error:
        if Traced.__name__ not in str(error):
            raise
        line = str(error).partition("\n")[0]
    raise InputError(f"a function must use operators, torch's functions and methods of its tensor alone, got: {line}")


def _checked(result: object) -> Traced:
    if not isinstance(result, Traced):
        raise InputError(
            "a function must give what it makes of its tensor, one result or a tuple of them, got"
            f" {type(result).__name__}"
        )
    if isinstance(result.expression, Condition):
        raise InputError("a result must be numbers, got a condition; write .to(x.dtype) after it")
    if result.expression.has(*_NO_NUMBERS):
        raise InputError(f"a result must be a real, finite formula, got {result.expression}")
    return result


def _value(result: Traced) -> Expr:
    """The result's expression; one such as x - x is 0, but NaN at NaN."""
    lost = result.varies and not result.expression.free_symbols
    return unless_nan(x, result.expression) if lost else result.expression
