"""A fit as a coefficient document, the file name it goes by, and formulas from documents."""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sympy import Expr, Rational, Symbol

from coefficients import naming
from coefficients.store import Published, publish
from fitting import provenance
from fitting.activations.tape import Tape
from fitting.invact.branches import Side
from fitting.invact.candidate import Candidate
from fitting.invact.engines import DEFAULT
from fitting.invact.form import S, Y
from fitting.invact.papers import Template
from fitting.invact.price import Price
from fitting.invact.rows import Row
from fitting.invact.solve import DEFAULT_WEIGHT, Fit
from fitting.invact.text import read, spell

LIBRARIES = ("mpmath", "numpy", "python-flint", "scipy", "sympy")
DIGITS = 12  # of errors
ENGINE_LIBRARIES = {"operon": ("pyoperon",), "pysr": ("pysr",)}


def to_document(fit: Fit) -> dict[str, Any]:
    """The document of `fit`, as `coefficients.publish` takes it."""
    split = fit.floor.split
    engines = ("closed",) if fit.exact else fit.engines
    libraries = [*LIBRARIES, *(name for engine in engines for name in ENGINE_LIBRARIES.get(engine, ()))]
    side = None if split.border is None else "left" if split.border_is_left else "right"
    return {
        "function": provenance.function(fit.activation),
        "method": "invact",
        "options": {
            "dtype": fit.dtype,
            "engine": "+".join(engines),
            "weight": fit.weight.label,
            "budget": fit.settings.budget,
            "max_error": fit.max_error,
        },
        "solution": {
            "rule": fit.rule.text,
            "border": split.border,
            "border_side": side,
            "branches": [_branch(one, part) for one, part in zip(fit.chosen.candidates, split.sides, strict=True)],
            "price": price_counts(fit.chosen.price),
            "front": [_front_row(row) for row in fit.listed],
        },
        "error": _error(fit),
        "provenance": {
            "command": command(fit),
            "seed": fit.settings.seed,
            "versions": provenance.versions(sorted(libraries)),
        },
    }


def _branch(candidate: Candidate, side: Side) -> dict[str, Any]:
    variable = candidate.variable
    plain = variable.symbolic == Y
    return {
        "x": [_finite(side.lo), _finite(side.hi)],
        "y": [_finite(end) for end in side.range],
        "direction": side.direction,
        "engine": candidate.form.engine,
        "variable": None if plain else spell(variable.symbolic),
        "expression": spell(candidate.form.expression),
        "constants": {
            **({} if plain else variable.constants),
            **{c.name: value for c, value in zip(candidate.form.constants, candidate.form.values, strict=True)},
        },
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
    """To the digits that are the same on every machine: sums and functions differ by some units of the last place."""
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
        "rms": _rounded(fit.chosen.rms),
        "linf": _rounded(fit.chosen.linf),
        "linf_at": fit.chosen.linf_at,
        "pointwise": _rounded(fit.chosen.pointwise),
        "floor_rms": _rounded(fit.floor.rms),
        "floor_linf": _rounded(fit.floor.linf),
        "sampled": [bound.sampled for bound in fit.bounds],
        "bound": [_finite(bound.upper) for bound in fit.bounds],
    }


def command(fit: Fit) -> str | None:
    """The command that makes this fit again; None for what no command line can name."""
    if fit.weight.spelling is None or fit.settings.imported is not None or fit.settings.templates:
        return None
    words = ["--dtype", fit.dtype, *_engine_words(fit)]
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
    return [] if fit.exact or fit.engines == DEFAULT else ["--engine", ",".join(fit.engines)]


def file_name(fit: Fit) -> str:
    """`invact-bfloat16`, and after it whatever is not by default, in characters that suit any file system."""
    settings = fit.settings
    extra = ["imported"] if settings.imported is not None else []
    extra += [f"templates={_digest(settings.templates)}"] if settings.templates else []
    return naming.file_name(to_document(fit), extra=extra)


def _digest(templates: Sequence[Template]) -> str:
    """Eight digits that differ between templates."""
    return hashlib.sha256(repr([(one.text, dict(one.start)) for one in templates]).encode()).hexdigest()[:8]


def store(fit: Fit, root: Path) -> Published:
    """Publish `fit` below `root`: a new version unless the newest one already says the same."""
    return publish(to_document(fit), file_name(fit), root)


def tapes_of(branch: dict[str, Any]) -> tuple[Tape, Tape]:
    """s in y, and q in y and s, as a stored branch spells them; the constants are the numbers it gives.

    Raises `InputError` for text outside the grammar.
    """
    constants = branch["constants"]
    numbers = {Symbol(name, real=True): Rational(float(value)) for name, value in constants.items()}

    def expression(text: str) -> Expr:
        return read(text, constants).xreplace(numbers)

    s = Y if branch["variable"] is None else expression(branch["variable"])
    return Tape(s, Y), Tape(expression(branch["expression"]), Y, S)
