"""A stand-in for a tensor: a Python function of one tensor, called with it, gives its own formula.

Operators, methods and functions of torch (by the protocol `__torch_function__`) are looked up by their names in
`codegen.operations`. What is not element-wise in that one tensor is refused by name, with the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import sympy
from sympy import Expr
from sympy.core.parameters import distribute

from codegen.choices import Condition, unless_nan
from codegen.names import CASTS, RANDOM, REDUCTIONS, VALUES, by_name, hint, refused
from codegen.operands import operand
from codegen.operations import ARITHMETIC, CONSTANT, OPERATIONS, apply
from fitting.activations.functions import x
from fitting.errors import InputError

MAX_SIZE = 2000  # numbers, names and operations of an expression, written out
MAX_DEPTH = 60

# What dtype a result has: that of x, float32, or the wider one of these two.
OWN, SINGLE, WIDER = "own", "float32", "wider"
_NO_NUMBERS = (sympy.nan, sympy.zoo, sympy.oo, -sympy.oo, sympy.I)
_OPERATORS = [
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "pos", "abs"),
    *("lt", "le", "gt", "ge", "eq", "ne", "and", "rand", "or", "ror", "invert"),
    *("floordiv", "rfloordiv", "mod", "rmod", "matmul", "rmatmul", "xor", "rxor", "lshift", "rshift", "divmod"),
]
_IN_PLACE = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]


class Dtype:
    """The dtype of a stand-in: good for casts, and for nothing else."""

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
    """What the operation of torch of this name gives. Raises `InputError` for one there is not, with the reason."""
    plain = by_name(name)
    traced = [one for one in (*args, *kwargs.values()) if isinstance(one, Traced)]
    if not all(one.recorded() for one in traced):
        raise InputError(
            f"an operation must be one that backward goes through, got {plain} within torch.no_grad() or a"
            " torch.autograd.Function; write a formula of torch's operations without them"
        )
    if plain in CASTS:
        return _cast(plain, args, kwargs)
    numbers = [one for one in traced if not isinstance(one.expression, Condition)]
    if plain in ARITHMETIC and not numbers:
        raise InputError(
            f"arithmetic must be done on numbers, got {plain} of conditions; write .to(x.dtype) after them"
        )
    expression = apply(plain, [_bare(one) for one in args], {key: _bare(one) for key, one in kwargs.items()})
    _check_size(expression)
    varies = plain not in CONSTANT and any(one.varies for one in traced)
    recorded = next((one.recorded for one in traced), lambda: True)  # torch.cat([x]) has it in a list
    return Traced(expression, _joint({one.kind for one in numbers}), varies, recorded)


def _method(name: str, *args: object, **kwargs: object) -> Traced:
    return called(name, args, kwargs)


def _bare(value: object) -> object:
    return value.expression if isinstance(value, Traced) else value


def _joint(kinds: set[str]) -> str:
    """Of a result of operands of these kinds; of conditions and numbers alone torch makes float32."""
    return kinds.pop() if len(kinds) == 1 else WIDER


def _cast(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Traced:
    """Everything is computed in float32 and rounded once, so a cast there and back changes nothing."""
    given = [*args, *kwargs.values()]
    wanted = "torch.float32" if name == "float" else given[1] if len(given) == 2 else None
    source = given[0]
    if isinstance(source, Traced) and isinstance(wanted, Traced | Dtype):
        return Traced(operand(source.expression), wanted.kind, source.varies, source.recorded)
    if isinstance(source, Traced) and str(wanted) == "torch.float32":
        return Traced(operand(source.expression), SINGLE, source.varies, source.recorded)
    got = name if len(given) < 2 else f"{name} with {', '.join(map(str, given[1:]))}"
    raise InputError(f"a cast must be to float32 or to the dtype of the function's tensor, got {got}; leave it out")


def _valued(name: str) -> InputError:
    return InputError(f"a function must not look at the values of its tensor, got {VALUES[name]}")


def _operator(name: str) -> Callable[..., Traced]:
    return lambda *operands: called(name, operands, {})


def _valuing(name: str) -> Callable[..., NoReturn]:
    def method(*_: object) -> NoReturn:
        raise _valued(name)

    return method


def _changing(name: str) -> Callable[..., NoReturn]:
    def method(*_: object) -> NoReturn:
        raise InputError(
            f"an operation must not change its tensor in place, got an augmented assignment ({name}); write"
            " y = y + ... instead of y += ..."
        )

    return method


for _name in _OPERATORS:
    setattr(Traced, f"__{_name}__", _operator(_name))
for _name in VALUES:
    if _name.startswith("__"):
        setattr(Traced, _name, _valuing(_name))
for _name in _IN_PLACE:
    setattr(Traced, f"__i{_name}__", _changing(f"i{_name}"))


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


def trace(function: Callable[..., object], *args: object, **kwargs: object) -> Trace:
    """The function's formulas: it is called with a stand-in and these further arguments.

    Raises `InputError` for what it does that is not element-wise in its one tensor.
    """
    return trace_recorded(function, lambda: True, args, kwargs)


def trace_recorded(
    function: Callable[..., object], recorded: Callable[[], bool], args: Sequence[object], kwargs: Mapping[str, object]
) -> Trace:
    """The same, of what torch records: `recorded` is asked at each operation and must say so."""
    with distribute(False):  # (x - 3)*100 has digits that 100*x - 300 loses
        result = _called(function, Traced(x, recorded=recorded), args, kwargs)
    several = type(result) is tuple
    results = result if isinstance(result, tuple) and several else (result,)
    if not results:
        raise InputError("a function must give at least one result, got an empty tuple")
    found = [_checked(one) for one in results]
    return Trace(tuple(map(_value, found)), tuple(one.kind for one in found), several)


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
    """Its expression; of x - x, which is 0, a NaN is left."""
    lost = result.varies and not result.expression.free_symbols
    return unless_nan(x, result.expression) if lost else result.expression
