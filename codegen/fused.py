"""A user's element-wise function as one kernel pair: forward gives its results and their derivatives, backward the sum
of the products with the gradients (method forward-ad, for m results of one tensor).

`fuse` traces the function, `FusedFunction.text` is the module: the primitives, one function of an element that returns
all results and derivatives and computes what they share once, and the two passes.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from sympy import Expr, Float
from sympy.core.parameters import distribute
from sympy.printing.str import StrPrinter

from actfit.codegen import passes, template
from actfit.codegen.function import Function, Writer
from actfit.codegen.launchers import IMPORTS, fused_launchers
from actfit.codegen.module import text_of, texts_of
from actfit.codegen.options import DTYPES, TARGETS
from actfit.codegen.overflow import check_numbers
from actfit.codegen.piecewise import like, select, unless_nan
from actfit.codegen.rewrites import masked, quotients, rewritten
from actfit.codegen.traced import trace
from actfit.fitting.activations.functions import x
from actfit.fitting.errors import InputError
from actfit.kernels.engine.templates import elementwise_source


class _Text(StrPrinter):
    """Formulas for people: numbers as Python writes them."""

    def _print_Float(self, expr: Float) -> str:
        return repr(float(expr))


@dataclass(frozen=True)
class FusedFunction:
    """A function's `name`, its results as kernels compute them, the dtype of each as `actfit.codegen.traced` names it,
    and whether they come in a tuple."""

    name: str
    values: tuple[Expr, ...]
    kinds: tuple[str, ...]
    several: bool

    @cached_property
    def derivatives(self) -> tuple[Expr, ...]:
        """The derivatives."""
        with distribute(False):  # as in `actfit.codegen.traced`
            return tuple(passes.derivative(masked(rewritten(value.diff(x)))) for value in self.values)

    @cached_property
    def results(self) -> tuple[Expr, ...]:
        """The values as kernels compute them."""
        with distribute(False):
            return tuple(map(passes.value, self.values))

    @property
    def count(self) -> int:
        """The number of results."""
        return len(self.values)

    @cached_property
    def key(self) -> str:
        """The function's name and a digest of its formulas."""
        digest = hashlib.sha256(self.text("torch", "float32").encode()).hexdigest()
        return f"{self.name}-{digest[:16]}"

    @property
    def expressions(self) -> tuple[tuple[str, str], ...]:
        """Each result and its derivative, as text."""
        texts = [_Text().doprint(expression) for expression in (*self.values, *self.derivatives)]
        return tuple(zip(texts[: self.count], texts[self.count :], strict=True))

    def text(self, target: str, dtype: str) -> str:
        """The module's text. Raises `InputError` for what cannot be emitted, with the reason."""
        for what, value, known in (("target", target, TARGETS), ("dtype", dtype, DTYPES)):
            if value not in known:
                raise InputError(f"{what} must be one of {', '.join(known)}, got {value!r}")
        with distribute(False):
            return self._triton(dtype) if target == "triton" else self._torch(dtype)

    def _element(self, target: str) -> Function:
        return _function(
            "element", (*self.results, *self.derivatives), self.count, target, "All results, then the derivatives."
        )

    def _triton(self, dtype: str) -> str:
        element = self._element("triton")
        source = template.Template(elementwise_source())
        kernels = tuple(
            source.kernel(name, {"COUNT": count}, {"ELEMENT": "element"}, parameters=False)
            for name, count in (("fused_forward_kernel", 2 * self.count), ("fused_backward_kernel", self.count))
        )
        texts = [*texts_of([element], dtype, "triton"), *kernels, *fused_launchers(kernels, self.count, dtype)]
        notes = [
            "Eight elements make a row; a program does ROWS of them: grid (ceil(n / (8*ROWS)),).",
            f"Pointers are tuples: forward's of {self.count} results and as many derivatives,"
            f" backward's of {self.count} gradients and as many derivatives.",
        ]
        return self._module(dtype, notes, IMPORTS, texts)

    def _torch(self, dtype: str) -> str:
        values = _function("values", self.results, self.count, "torch", "All results.")
        texts = texts_of([values, self._element("torch")], dtype, "torch")
        return self._module(
            dtype, [], "import torch", [*texts, _TORCH_FORWARD.format(count=self.count), _TORCH_BACKWARD]
        )

    def _module(self, dtype: str, notes: list[str], imports: str, texts: list[str]) -> str:
        lines = [f"{self.name}: {self.count} element-wise result{'s' * (self.count > 1)} of one tensor.", ""]
        for i, (value, derivative) in enumerate(self.expressions):
            lines += [f"    y{i} = {value}", f"    derivative{i} = {derivative}"]
        kept = "its derivative, a tensor" if self.count == 1 else f"the {self.count} derivatives, tensors"
        lines += ["", f"Method forward-ad, dtype {dtype}: backward is left with {kept} like x.", *notes]
        return text_of(lines, imports, texts)


_TORCH_FORWARD = '''\
def forward_pass(x):
    """The results, and the derivatives that backward needs."""
    wide = x if x.dtype == torch.float64 else x.float()
    found = [one.to(x.dtype) for one in element(wide)]
    return found[:{count}], found[{count}:]'''
_TORCH_BACKWARD = '''\
def backward_pass(grads, derivatives):
    """The sum of grad * derivative."""
    dtype = derivatives[0].dtype if derivatives[0].dtype == torch.float64 else torch.float32
    products = [grad.to(dtype) * derivative.to(dtype) for grad, derivative in zip(grads, derivatives)]
    return sum(products[1:], products[0]).to(derivatives[0].dtype)'''


def fuse(
    function: Callable[..., object],
    name: str,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] = MappingProxyType({}),
    recorded: Callable[[], bool] = lambda: True,
) -> FusedFunction:
    """The function, traced by `trace` with these arguments, ready to be emitted under its `name`.

    Raises `InputError` as `trace` does, and for a number that float32 does not have.
    """
    traced = trace(function, args, kwargs, recorded)
    with distribute(False):
        values = tuple(quotients(passes.definition(rewritten(expression))) for expression in traced.expressions)
    fused = FusedFunction(name[:64] if name.isidentifier() else "function", values, traced.kinds, traced.several)
    with distribute(False):
        for expression in (*fused.values, *fused.derivatives):
            check_numbers(expression)
    return fused


def _function(name: str, results: tuple[Expr, ...], values: int, target: str, doc: str) -> Function:
    """The function of an element; its first `values` results are NaN at NaN, in spite of their branches."""
    writer = Writer(target)
    writer.give(*(_result(result, target, guarded=index < values) for index, result in enumerate(results)))
    writer.lines[-1] = f"{writer.lines[-1]}," if len(results) == 1 else writer.lines[-1]
    return writer.function(name, ("x",), doc)


def _result(expression: Expr, target: str, guarded: bool) -> Expr:
    if not expression.free_symbols:
        return like(expression, x) if target == "torch" else expression
    return unless_nan(x, expression) if guarded and expression.has(select) else expression
