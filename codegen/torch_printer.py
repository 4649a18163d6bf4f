"""Expressions as text for PyTorch."""

from typing import ClassVar

from sympy import Expr

from actfit.codegen.printer import ElementwisePrinter
from actfit.codegen.torch_primitives import NAMES, TORCH


class TorchPrinter(ElementwisePrinter):
    """For a function of tensors."""

    language = "PyTorch"
    functions: ClassVar = {**NAMES, **{name: name for name in TORCH}}
    select = "torch.where"
    fused = "{a} * {b} + {c}"
    fused_in_place = "{a}.mul_({b}).add_({c})"

    def _builtin(self, name: str) -> str:
        return f"torch.{name}"

    def _total(self, expr: Expr) -> str:
        return self._sum(list(expr.args)) or "0.0"

    def _otherwise(self, expr: Expr) -> str:
        """Of two numbers torch.where makes float32, whatever the dtype of x: the last becomes a tensor like x."""
        text = super()._otherwise(expr)
        if any(value.free_symbols - self.scalars for value, _ in expr.args):
            return text
        variables = sorted(symbol.name for symbol in expr.free_symbols - self.scalars)
        return f"torch.full_like({next(iter(variables), 'x')}, {text})"

    def _clamped(self, limit: str, expr: Expr) -> str:
        """The larger or smaller of two; torch.maximum and torch.minimum take tensors only."""
        varying = sorted(expr.args, key=lambda part: self._is_scalar(part) or part.is_number)
        if not (self._is_scalar(varying[1]) or varying[1].is_number):
            return f"torch.{type(expr).__name__}({self._print(varying[0])}, {self._print(varying[1])})"
        return f"torch.clamp({self._print(varying[0])}, {limit}={self._print(varying[1])})"

    def _write_maximum(self, expr: Expr) -> str:
        return self._clamped("min", expr)

    def _write_minimum(self, expr: Expr) -> str:
        return self._clamped("max", expr)
