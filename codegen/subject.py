"""What is emitted: a function, its definition as kernels compute it, and its coefficient files."""

import builtins
import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sympy import Expr, Symbol

from actfit.codegen import passes
from actfit.codegen.options import DTYPES as DTYPES
from actfit.codegen.primitives import TRITON
from actfit.codegen.quotients import patches, polynomials
from actfit.codegen.rewrites import quotients, rewritten
from actfit.codegen.torch_primitives import TORCH
from actfit.coefficients import load
from actfit.coefficients.schema import Document
from actfit.coefficients.store import DATA, available
from actfit.fitting.activations import Activation, from_expression, get
from actfit.fitting.activations.catalogue import CATALOGUE
from actfit.fitting.activations.functions import x
from actfit.fitting.activations.grammar import parse_formula
from actfit.fitting.activations.vocabulary import FUNCTIONS
from actfit.fitting.errors import InputError

_TAKEN = {"x", "y", "s", "on_right", "left", "right", "params", "tl", "triton", "torch", *TRITON, *TORCH, *FUNCTIONS}


@dataclass(frozen=True)
class File:
    """A coefficient file: its path and its content."""

    path: str
    document: Document

    @property
    def origin(self) -> str:
        """One line of an emitted module's header."""
        return f"{self.path}, sha256 {self.document['sha256'][:16]}"


@dataclass(frozen=True)
class Subject:
    """A function; its `parameters` are arguments of the kernel, its other parameters are numbers in the text."""

    activation: Activation
    parameters: tuple[str, ...]
    files: Mapping[str, File]

    @property
    def name(self) -> str:
        """The function's name."""
        return self.activation.name

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The free parameters."""
        return tuple(Symbol(name, real=True) for name in self.parameters)

    @cached_property
    def definition(self) -> Expr:
        """f(x), as it is differentiated."""
        expression = self.activation.f_expression
        if self.parameters:
            expression = parse_formula(self.activation.expr, (x, *self.symbols))

        def spelled(part: Expr) -> Expr:
            return quotients(rewritten(passes.definition(part)))

        return patches(expression, spelled)

    @cached_property
    def forward(self) -> Expr:
        """f(x), as kernels compute it."""
        return passes.value(polynomials(self.definition))

    @cached_property
    def derivative(self) -> Expr:
        """f'(x), as kernels compute it."""
        return passes.derivative(polynomials(self.definition.diff(x)))

    def fewbit(self) -> dict[int, File]:
        """The tables, by the bits that were asked for."""
        tables = {
            file.document["options"]["bits"]: file
            for name, file in self.files.items()
            if file.document["method"] == "fewbit" and name == f"fewbit-{file.document['options']['bits']}bit"
        }
        return dict(sorted(tables.items()))

    def invact(self, bits: int = 1) -> dict[str, File]:
        """The formulas that take `bits` bits beside the output, by dtype."""
        names = {dtype: f"invact-{dtype}{'-2bit' * (bits == 2)}" for dtype in DTYPES}
        return {dtype: self.files[name] for dtype, name in names.items() if name in self.files}

    @property
    def formulas(self) -> list[File]:
        """All of them, those for one bit first."""
        return [*self.invact().values(), *self.invact(2).values()]


def of_catalogue(name: str) -> Subject:
    """A function of the catalogue by its name, with free parameters and the packaged files for their defaults.

    Raises `InputError` for an unknown name.
    """
    activation = get(name)
    newest = {entry.name: entry for entry in available() if entry.function == activation.name}
    files = {
        entry.name: File(f"coefficients/{entry.path.relative_to(DATA.parent).as_posix()}", load(entry.path))
        for entry in newest.values()
    }
    return Subject(activation, tuple(CATALOGUE[activation.name].params), files)


def of_one(activation: Activation, path: Path | None = None) -> Subject:
    """Any function with numbers as its parameters, and with the coefficient file at `path` or none.

    Raises `InputError` for a file of another function, and for a joint code, which no emitted kernel reads;
    `CoefficientError` for a file that breaks a rule, `OSError` for one that cannot be read.
    """
    return Subject(activation, (), {}) if path is None else of_document(activation, str(path), load(path))


def of_document(activation: Activation, path: str, document: Document) -> Subject:
    """`of_one` with a document that was read; `path` is for messages."""
    function = document["function"]
    stored = from_expression(function["expr"], function["name"], function["params"])
    if (stored.name, stored.f_expression) != (activation.name, activation.f_expression):
        raise InputError(
            f"coefficients must be those of {activation.name}, got {stored.name} = {stored.expr} in {path}"
        )
    for branch in document["solution"].get("branches", ()):
        for name in branch["constants"]:
            _check_constant(name, path)
    options = document["options"]
    if document["method"] == "joint":
        raise InputError(
            f"coefficients must be of fewbit or invact, got joint in {path}; actfit.nn.ActLinear takes joint codes"
        )
    if document["method"] == "fewbit":
        key = f"fewbit-{options['bits']}bit"
    else:
        key = f"invact-{options['dtype']}{'-2bit' * ('bits' in options)}"
    return Subject(activation, (), {key: File(path, document)})


def _check_constant(name: str, path: str) -> None:
    """Raise InputError for the name of a constant that would hide another name of the emitted module."""
    taken = keyword.iskeyword(name) or name in _TAKEN or hasattr(builtins, name)
    if taken or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise InputError(
            f"a constant's name must be letters, digits and underscores, and not taken, got {name!r} in {path}"
        )
