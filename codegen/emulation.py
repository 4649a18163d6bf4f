"""Run the text of emitted functions on numpy arrays, in the precision and the range that a kernel has.

The text is walked as a syntax tree, never executed: each construct that the printers write has an entry here.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from actfit.codegen.function import Function

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Invert: operator.invert}
_COMPARE: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.NotEq: operator.ne,
    ast.Eq: operator.eq,
}


# By the names in Triton and PyTorch, without "tl." and "torch.".
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("abs", "exp", "exp2", "log", "log2", "sqrt", "floor", "where", "sign")},
    **{
        name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "expm1", "log1p", "logaddexp")
    },
    "atan": np.arctan,
    "pow": np.power,
    "rsqrt": lambda u: 1 / np.sqrt(u),
    "erf": special.erf,
    "erfc": special.erfc,
    "sigmoid": special.expit,
    "fma": lambda a, b, c: np.float32(np.float64(a) * b + c),  # a product of two float32 is exact in float64
    "maximum": lambda a, b, **_: np.maximum(a, b),
    "minimum": lambda a, b, **_: np.minimum(a, b),
    "clamp": lambda u, min=None, max=None: np.maximum(u, min) if max is None else np.minimum(u, max),
    "full_like": lambda u, value: np.full_like(u, value),
    "zeros_like": np.zeros_like,
}


class Emulation:
    """Runs `functions`, by name; they may call each other.

    After a run `lost` tells where a value overflowed, or where a product of numbers other than 0 became 0.
    """

    def __init__(self, functions: Mapping[str, Function], dtype: type[np.floating[Any]] = np.float32) -> None:
        self.functions, self.dtype = functions, dtype
        self.lost: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)

    def run(self, name: str, x: NDArray[np.floating[Any]], params: tuple[float, ...] = ()) -> NDArray[np.floating[Any]]:
        """The function of this name at each x."""
        self.lost = np.zeros(x.shape, dtype=np.bool_)
        given = [x.astype(self.dtype), tuple(map(self.dtype, params))]
        with np.errstate(all="ignore"):
            value = self._call(name, given[: len(self.functions[name].arguments)])
        return np.broadcast_to(np.asarray(value, dtype=self.dtype), x.shape)

    def _call(self, name: str, values: list[Any]) -> Any:
        function = self.functions[name]
        space = dict(zip(function.arguments, values, strict=True))
        for statement in ast.parse("\n".join(function.body)).body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=target)], value=value):
                    space[target] = self._value(value, space)
                case ast.Return(value=value) if value is not None:
                    return self._value(value, space)
        raise ValueError(f"{name} must return a value")

    def _value(self, node: ast.expr, space: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=int() | float() as number):
                return self.dtype(number)
            case ast.Attribute(value=ast.Name(id="torch"), attr="inf"):
                return self.dtype(np.inf)
            case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value="inf" | "-inf" as number)]):
                return self.dtype(number)
            case ast.Name(id=name):
                return space[name]
            case ast.Subscript(value=value, slice=ast.Constant(value=index)):
                return self._value(value, space)[index]
            case ast.UnaryOp(op=op, operand=operand):
                return _UNARY[type(op)](self._value(operand, space))
            case ast.BinOp(left=left, op=op, right=right):
                return self._watched(_BINARY[type(op)], type(op), self._value(left, space), self._value(right, space))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return _COMPARE[type(op)](self._value(left, space), self._value(right, space))
            case ast.Call(func=function, args=arguments, keywords=keywords):
                return self._called(function, arguments, keywords, space)
        raise ValueError(f"emitted text must be one that the printers write, got {ast.unparse(node)}")

    def _called(
        self, function: ast.expr, arguments: list[ast.expr], keywords: list[ast.keyword], space: Mapping[str, Any]
    ) -> Any:
        values = [self._value(argument, space) for argument in arguments]
        match function:
            case ast.Name(id=name) if name in self.functions:
                return self._call(name, values)
            case ast.Attribute(value=ast.Name(id="tl" | "torch"), attr=name) if name in _FUNCTIONS:
                named = {
                    keyword.arg: self._value(keyword.value, space)
                    for keyword in keywords
                    if keyword.arg in ("min", "max")
                }
                return self._watched(lambda *given: _FUNCTIONS[name](*given, **named), ast.Call, *values)
            case ast.Attribute(value=value, attr="mul_" | "add_" as name):  # in place, of a value not needed any more
                op = ast.Mult if name == "mul_" else ast.Add
                return self._watched(_BINARY[op], op, self._value(value, space), *values)
        raise ValueError(f"emitted text must call what the printers know, got {ast.unparse(function)}")

    def _watched(self, operation: Callable[..., Any], kind: type[ast.AST], *values: Any) -> Any:
        result = operation(*values)
        if isinstance(result, np.ndarray | np.floating) and result.dtype != np.bool_:
            result = result.astype(self.dtype)
            finite = np.logical_and.reduce([np.isfinite(value) for value in np.broadcast_arrays(*values)])
            lost = np.isinf(result) & finite
            if kind in (ast.Mult, ast.Div):
                lost = lost | ((result == 0) & (values[0] != 0) & np.isfinite(values[-1]) & (values[-1] != 0))
            self.lost = self.lost | lost
        return result
