"""Modules of loops for CPUs, which Numba compiles: f' in float32 from y = f(x) and from the branch of x.

PyTorch passes over memory for each operation, some forty times for gelu; a loop of vector instructions passes once. Its
text is that of the Triton kernel, of one number in place of a block of them. 16 bits need no loop: a table has all
outputs.
"""

import ast
from dataclasses import replace

from actfit.codegen import elements
from actfit.codegen.function import Function
from actfit.codegen.polynomials import coefficients
from actfit.codegen.subject import Subject
from actfit.kernels.methods.from_output import ELEMENT

DTYPE = "float32"
_WHOLE = 1.5 * 2**23  # added to a small number, it leaves a whole number in the lowest bits
_BIAS, _DIGITS = 127, 23  # of exponents, and the place of their lowest bit


def _primitives() -> tuple[Function, ...]:
    """What Triton has of its own, or what is written otherwise for it; each after those that it calls."""
    *rest, highest = coefficients("exp2", DTYPE)
    exp2 = (
        "x = minimum(maximum(x, -126.0), 127.0)",
        f"whole = x + {_WHOLE}",
        f"u = x - (whole - {_WHOLE})",
        f"p = {highest!r}",
        *(f"p = tl.fma(p, u, {number!r})" for number in reversed(rest)),
        f"exponent = int32(float32(whole).view(int32) << int32({_DIGITS})) + int32({_BIAS << _DIGITS})",
        "return p * int32(exponent).view(float32)",
    )
    doc = "2**x from 2**-126 to 2**127: a polynomial, and a power of 2 from bits."
    return (
        Function("maximum", ("x", "y"), "The larger of two; NaN if one is.", (_extremum(">"),)),
        Function("minimum", ("x", "y"), "The smaller of two; NaN if one is.", (_extremum("<"),)),
        Function("exp2", ("x",), doc, exp2),
    )


def _extremum(sign: str) -> str:
    return f"return tl.where((x {sign} y) | (x != x), x, y)"


_LOOP = Function(
    "from_output",
    ("y", "on_right", "result"),
    "result = f'(x), of flat arrays of one length.",
    (
        "on_right, result = on_right[: len(y)], result[: len(y)]  # so that all indices are known to be inside",
        "for i in range(len(y)):",
        f"    result[i] = {ELEMENT}(y[i], on_right[i])",
    ),
    jit=False,
)


def loops_of(subject: Subject) -> list[str] | None:
    """The functions of `<name>_loops.py`, each after those that it calls; None for a function that has no loop."""
    element = elements.derivative_from_output(subject, DTYPE, "triton")
    if "on_right" not in element.arguments or not element.calls:  # f' of threshold is the branch itself
        return None
    primitives = _primitives()
    if not element.calls <= {primitive.name for primitive in primitives}:
        return None
    functions = [*primitives, element.without("params")]
    called = _called(functions, element.name)
    texts = [f"@inlined\n{_of_numbers(function)}" for function in functions if function.name in called]
    return [*texts, f"@compiled_loop\n{_LOOP.text()}"]


def _called(functions: list[Function], name: str) -> set[str]:
    """The name, and those of `functions` that it calls."""
    called = {name}
    for function in reversed(functions):
        if function.name in called:
            text = "\n".join(function.body)
            called |= {other.name for other in functions if f"{other.name}(" in text}
    return called


def _of_numbers(function: Function) -> str:
    """The text of a function of one number, from that of a Triton function."""
    tree = _Scalars().visit(ast.parse(replace(function, jit=False).text()))
    return ast.unparse(ast.fix_missing_locations(tree))


class _Scalars(ast.NodeTransformer):
    """Triton's operations as those of Python and NumPy; numbers in float32, as Numba would compute in float64."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return self._call("float32", node) if isinstance(node.value, float) else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr=name), args=arguments):
                return self._operation(name, arguments)
        return node

    def _operation(self, name: str, arguments: list[ast.expr]) -> ast.expr:
        match name, arguments:
            case "fma", [a, b, c]:
                return ast.BinOp(ast.BinOp(a, ast.Mult(), b), ast.Add(), c)
            case "where", [condition, a, b]:
                return ast.IfExp(condition, a, b)
            case (("exp2" | "sqrt"), _):
                return self._call(name, *arguments)
        raise ValueError(f"a loop must be made of what is written for numbers, got tl.{name}")

    @staticmethod
    def _call(name: str, *arguments: ast.expr) -> ast.expr:
        return ast.Call(ast.Name(name), list(arguments), [])
