"""A fit as a coefficient document, the name of its file, and formulas from documents."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from sympy import Expr, Symbol

from actfit.coefficients import naming
from actfit.coefficients.store import Published, publish
from actfit.fitting import provenance
from actfit.fitting.invact.branches import Branch
from actfit.fitting.invact.engines import DEFAULT
from actfit.fitting.invact.engines.papers import Template
from actfit.fitting.invact.formula import Candidate, Form, read, spell
from actfit.fitting.invact.front import Row
from actfit.fitting.invact.price import Price
from actfit.fitting.invact.solve import DEFAULT_WEIGHT, Fit
from actfit.fitting.invact.variable import Variable, Y, constant, with_numbers

LIBRARIES = ("mpmath", "numpy", "python-flint", "scipy", "sympy")
DIGITS = 12  # of stored errors
ENGINE_LIBRARIES = {"operon": ("pyoperon",), "pysr": ("pysr",)}


def to_document(fit: Fit) -> dict[str, Any]:
    """The document of a fit, as `coefficients.store.publish` takes it."""
    split = fit.error_floor.split
    engines = (fit.best.engine,) if fit.unasked else fit.engines
    libraries = [*LIBRARIES, *(name for engine in engines for name in ENGINE_LIBRARIES.get(engine, ()))]
    border_side = None if split.border is None else "left" if split.border_is_left else "right"
    return {
        "function": provenance.function(fit.activation),
        "method": "invact",
        "options": {
            "dtype": fit.dtype,
            **({"bits": fit.error_floor.bits} if fit.error_floor.bits > 1 else {}),
            "engine": "+".join(engines),
            "weight": fit.weight.label,
            "budget": fit.settings.budget,
            "max_error": fit.max_error,
        },
        "solution": {
            "rule": fit.rule.text,
            "border": split.border,
            "border_side": border_side,
            **({"cut": fit.error_floor.cut._asdict()} if fit.error_floor.cut is not None else {}),
            "branches": [
                _branch(candidate, branch)
                for candidate, branch in zip(fit.best.candidates, split.branches, strict=True)
            ],
            "price": price_counts(fit.best.price),
            "front": [_front_row(row) for row in fit.listed],
        },
        "error": _error(fit),
        "provenance": {
            "command": command(fit),
            "seed": fit.settings.seed,
            "versions": provenance.versions(sorted(libraries)),
        },
    }


def _branch(candidate: Candidate, branch: Branch) -> dict[str, Any]:
    s = candidate.variable.symbolic
    return {
        "x": [_finite(branch.lo), _finite(branch.hi)],
        "y": [_finite(end) for end in branch.range],
        "direction": branch.direction,
        "engine": candidate.form.engine,
        "variable": None if s == Y else spell(s),
        "expression": spell(candidate.form.expression),
        "constants": candidate.constants,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def price_counts(price: Price) -> dict[str, int]:
    """The `price` part of a document."""
    return {
        "instructions": price.total,
        "fma": price.fma,
        "other": price.other,
        "special": price.special,
        "division": price.divisions,
    }


def _rounded(value: float) -> float:
    """`value` to `DIGITS` digits: later digits differ between machines."""
    return float(f"{value:.{DIGITS - 1}e}")


def _front_row(row: Row) -> dict[str, Any]:
    return {
        "instructions": row.price.total,
        "rms": _rounded(row.rms),
        "linf": _rounded(row.linf),
        "pointwise": _rounded(row.pointwise),
        "engine": row.engine,
    }


def _error(fit: Fit) -> dict[str, Any]:
    return {
        "rms": _rounded(fit.best.rms),
        "linf": _rounded(fit.best.linf),
        "linf_at": fit.best.linf_at,
        "pointwise": _rounded(fit.best.pointwise),
        "floor_rms": _rounded(fit.error_floor.rms),
        "floor_linf": _rounded(fit.error_floor.linf),
        "sampled": [bound.sampled for bound in fit.bounds],
        "bound": [_finite(bound.upper) for bound in fit.bounds],
    }


def command(fit: Fit) -> str | None:
    """The command that repeats this fit; None if no command line can."""
    if fit.weight.spelling is None or fit.settings.imported is not None or fit.settings.templates:
        return None
    words = ["--dtype", fit.dtype, *_engine_words(fit)]
    if fit.error_floor.bits > 1:
        words += ["--bits", str(fit.error_floor.bits)]
    if fit.weight.spelling != DEFAULT_WEIGHT:
        words += ["--weight", fit.weight.spelling]
    if fit.max_error is not None:
        words += ["--max-error", repr(fit.max_error)]
    if fit.settings.budget is not None:
        words += ["--budget", str(fit.settings.budget)]
    if fit.settings.seed:
        words += ["--seed", str(fit.settings.seed)]
    return provenance.command("fitting.invact", fit.activation, words)


def _engine_words(fit: Fit) -> list[str]:
    return [] if fit.unasked or fit.engines == DEFAULT else ["--engine", ",".join(fit.engines)]


def file_name(fit: Fit) -> str:
    """The name of the file: `invact-bfloat16`, then the options that differ from the defaults.

    Its characters suit any file system.
    """
    settings = fit.settings
    extra = ["imported"] * (settings.imported is not None)
    extra += [f"templates={_digest(settings.templates)}"] if settings.templates else []
    return naming.file_name(to_document(fit), extra=extra)


def _digest(templates: Sequence[Template]) -> str:
    """Eight hexadecimal digits of the templates' hash."""
    spelled = repr([(template.text, dict(template.start)) for template in templates])
    return hashlib.sha256(spelled.encode()).hexdigest()[:8]


def store(fit: Fit, root: Path) -> Published:
    """Publish a fit below `root`: as a new version, unless the newest version is the same."""
    return publish(to_document(fit), file_name(fit), root)


@dataclass(frozen=True)
class StoredVariable:
    """s as a file spells it: takes the place of a `Variable` in a candidate, and is never refitted."""

    unsigned: Expr
    constants: dict[str, float]
    negative: bool

    @property
    def symbolic(self) -> Expr:
        """s as an expression of y and its constants' symbols."""
        return -self.unsigned if self.negative else self.unsigned

    @cached_property
    def expression(self) -> Expr:
        """s as an expression of y."""
        return with_numbers(self.symbolic, self.constants)


def candidate_of(branch: dict[str, Any]) -> Candidate:
    """The formula of a stored branch.

    branch: one of `solution.branches` of a document.
    Raises `InputError` if its text is outside the grammar.
    """
    constants = {name: float(value) for name, value in branch["constants"].items()}
    s = Y if branch["variable"] is None else read(branch["variable"], constants)
    of_form = [name for name in constants if Symbol(name, real=True) not in s.free_symbols]
    # Numbered in the order of the file, whatever their names are.
    numbered = {Symbol(name, real=True): constant(i) for i, name in enumerate(of_form)}
    expression = read(branch["expression"], constants).xreplace(numbered)
    negative = bool(s.is_Mul and s.args[0] == -1)
    of_variable = {name: value for name, value in constants.items() if name not in of_form}
    variable = StoredVariable(-s if negative else s, of_variable, negative)
    form = Form(expression, tuple(constants[name] for name in of_form), branch["engine"])
    return Candidate(form, cast(Variable, variable))
