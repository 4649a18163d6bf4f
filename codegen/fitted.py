"""A function with a coefficient file of it, as a kernel of the runtime: `elementwise(f, coefficients=...)` runs it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from actfit.codegen import elements
from actfit.codegen.function import Function
from actfit.codegen.info import info
from actfit.codegen.module import TRITON_IMPORTS, text_of, texts_of
from actfit.codegen.overflow import reach, with_limits
from actfit.codegen.subject import DTYPES, Subject, of_document
from actfit.coefficients import CoefficientError, load, naming
from actfit.coefficients.document import validate
from actfit.coefficients.reference import check_function, check_numbers
from actfit.coefficients.schema import Document
from actfit.fitting.activations import from_expression
from actfit.fitting.errors import InputError
from actfit.kernels.methods.few_bit import FewBit
from actfit.kernels.methods.from_output import FromOutput
from actfit.kernels.methods.function_info import FunctionInfo
from actfit.kernels.methods.method import KernelSpec, Method
from actfit.kernels.methods.table import Table

Coefficients = str | os.PathLike[str] | Mapping[str, Any]  # a file's path, or its document
_TABLES: dict[str, Table] = {}


@dataclass(frozen=True)
class OwnTable(FewBit):
    """The table of a document that was read, by `coefficients`, its origin and digest."""

    def table(self, function: FunctionInfo) -> Table:
        return _TABLES[self.coefficients]


@dataclass(frozen=True)
class Fitted:
    """A function that a coefficient file names, with the file's method."""

    subject: Subject  # the function with the file
    origin: str  # the file's path, or "a document"
    spec: KernelSpec  # the kernel
    dtypes: tuple[str, ...]  # of tensors that it takes; the first is that of a formula
    domain: tuple[float, float]  # where the file's function is compared with another

    @property
    def key(self) -> str:
        """The function's name and the file's digest."""
        return self.spec.function.name

    def text(self, target: str, dtype: str) -> str:
        """The module of element functions, for "triton" or "torch", as `actfit.kernels.engine.elements` reads it.

        Raises `InputError` for an expression that overflows on the way to a finite value.
        """
        functions = with_limits(self.subject, dtype, target, self._functions(target))
        reach(self.subject, dtype, target, functions)
        if target == "torch":  # where formulas have their dtype in their name
            suffixes = [f"_{self.dtypes[0]}" * each.name.startswith("derivative_") for each in functions]
            functions = [replace(each, name=each.name + end) for each, end in zip(functions, suffixes, strict=True)]
        imports = TRITON_IMPORTS if target == "triton" else "import torch"
        return text_of([self.key], imports, texts_of(functions, dtype, target))

    def _functions(self, target: str) -> list[Function]:
        functions = [elements.forward(self.subject, target)]
        for bits in (1, 2):
            for dtype in self.subject.invact(bits):
                make = elements.derivative_from_output if bits == 1 else elements.derivative_from_finer_output
                functions += [function for function in (make(self.subject, dtype, target),) if function is not None]
                bit = elements.branch_bit(self.subject, target)
                functions += [bit] if bit is not None else []
        return functions


def read(coefficients: Coefficients) -> Fitted:
    """The function of a fewbit or invact file, by its path or its document.

    Raises `InputError` for a file that cannot be read or is not valid, and for a joint code.
    """
    try:
        if isinstance(coefficients, Mapping):
            origin, document = "a document", validate(dict(coefficients))
        elif isinstance(coefficients, str | os.PathLike) and os.fspath(coefficients):
            origin = os.fspath(coefficients)
            document = load(origin)
        else:
            raise InputError(f"coefficients must be the path of a file, or its document, got {coefficients!r}")
        check_function(document)
        check_numbers(document)
    except OSError as error:
        raise InputError(f"coefficients must be a file that can be read, got {origin!r}: {error.strerror}") from None
    except CoefficientError as error:
        raise InputError(f"coefficients must be valid: {error}") from None
    return _fitted(origin, document)


def _fitted(origin: str, document: Document) -> Fitted:
    function = document["function"]
    subject = of_document(from_expression(function["expr"], function["name"], function["params"]), origin, document)
    digest, domain = document["sha256"][:16], document["options"].get("domain", naming.DOMAIN)
    known = replace(info(subject), name=f"{subject.name}-{digest}", parameters={}, lower_limits={}, rounded_for="")
    method, dtypes = _MAKE[document["method"]](f"{origin}#{digest}", document)
    fitted = Fitted(subject, origin, KernelSpec(known, method), dtypes, (float(domain[0]), float(domain[1])))
    names = frozenset(function.name for function in fitted._functions("torch"))
    return replace(fitted, spec=KernelSpec(replace(known, elements=names), method))


def _table(origin: str, document: Document) -> tuple[Method, tuple[str, ...]]:
    solution = document["solution"]
    if len(solution["levels"]) < 2:
        raise InputError(FewBit.too_few.format(path=origin))
    _TABLES[origin] = Table(*(tuple(solution[key]) for key in ("borders", "codes", "levels")))
    return OwnTable(document["options"]["bits"], origin), (*DTYPES, "float64")


def _formula(origin: str, document: Document) -> tuple[Method, tuple[str, ...]]:
    dtype = document["options"]["dtype"]
    return FromOutput(document["options"].get("bits", 1)), (dtype, "float64") if dtype == "float32" else (dtype,)


_MAKE = {FewBit.fit: _table, FromOutput.fit: _formula}
