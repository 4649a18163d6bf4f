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

from codegen.choices import Condition
from codegen.names import RANDOM, REDUCTIONS, by_name, refused
from codegen.operands import operand
from codegen.operations import ARITHMETIC, OPERATIONS, apply
from fitting.activations.heads import x
from fitting.errors import InputError

MAX_SIZE = 2000  # numbers, names and operations of an expression, written out
MAX_DEPTH = 60

# What dtype a result has: that of x, float32, or the wider one of these two.
OWN, SINGLE, WIDER = "own", "float32", "wider"
_NO_NUMBERS = (sympy.nan, sympy.zoo, sympy.oo, -sympy.oo, sympy.I)
_VALUES = {
    "__bool__": "a branch of Python (if, while, and, or, not) on its values; use torch.where",
    "__float__": "a Python number made of it; use torch's function instead of math's",
    "__int__": "a Python number made of it",
    "__index__": "a Python number made of it",
    "__complex__": "a Python number made of it",
    "item": "a Python number made of it",
    "tolist": "a Python list made of it",
    "numpy": "an array made of it",
    "__array__": "an array made of it",
    "__len__": "its length",
    "__iter__": "a loop over it",
    "__contains__": "a search in it",
    "__getitem__": "a part of it",
    "__setitem__": "a change of a part of it",
}
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
    """The stand-in: an expression in x, or a condition, and the dtype that torch would give it."""

    __array_ufunc__ = None  # numbers of numpy leave operators to it
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expression: Expr, kind: str = OWN) -> None:
        self.expression, self.kind = expression, kind

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
        if name in _VALUES:
            raise _valued(name)
        if name in _CASTS or by_name(name) in OPERATIONS:
            return partial(_method, name, self)
        if name in REDUCTIONS or name in RANDOM or name.endswith("_"):
            raise refused(name, {})
        raise InputError(
            f"a function must use its tensor in known element-wise operations alone, got .{name}; keep it outside of"
            " the function"
        )


def called(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Traced:
    """What the operation of torch of this name gives. Raises `InputError` for one there is not, with the reason."""
    plain = by_name(name)
    if plain in _CASTS:
        return _cast(plain, args, kwargs)
    traced = [one for one in (*args, *kwargs.values()) if isinstance(one, Traced)]
    numbers = [one for one in traced if not isinstance(one.expression, Condition)]
    if plain in ARITHMETIC and not numbers:
        raise InputError(
            f"arithmetic must be done on numbers, got {plain} of conditions; write .to(x.dtype) after them"
        )
    expression = apply(plain, [_bare(one) for one in args], {key: _bare(one) for key, one in kwargs.items()})
    _check_size(expression)
    return Traced(expression, _joint({one.kind for one in numbers}))


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
        return Traced(operand(source.expression), wanted.kind)
    if isinstance(source, Traced) and str(wanted) == "torch.float32":
        return Traced(operand(source.expression), SINGLE)
    got = name if len(given) < 2 else f"{name} with {', '.join(map(str, given[1:]))}"
    raise InputError(f"a cast must be to float32 or to the dtype of the function's tensor, got {got}; leave it out")


_CASTS = {
    "float",
    "to",
    "type",
    "type_as",
    "double",
    "half",
    "bfloat16",
    "int",
    "long",
    "short",
    "char",
    "byte",
    "bool",
}


def _valued(name: str) -> InputError:
    return InputError(f"a function must not look at the values of its tensor, got {_VALUES[name]}")


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
for _name in _VALUES:
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
    result = function(Traced(x), *args, **kwargs)
    several = type(result) is tuple
    results = result if isinstance(result, tuple) and several else (result,)
    if not results:
        raise InputError("a function must give at least one result, got an empty tuple")
    for one in results:
        if not isinstance(one, Traced):
            raise InputError(
                "a function must give what it makes of its tensor, one result or a tuple of them, got"
                f" {type(one).__name__}"
            )
        if isinstance(one.expression, Condition):
            raise InputError("a result must be numbers, got a condition; write .to(x.dtype) after it")
        if one.expression.has(*_NO_NUMBERS):
            raise InputError(f"a result must be a real, finite formula, got {one.expression}")
    return Trace(tuple(one.expression for one in results), tuple(one.kind for one in results), several)
