"""A fit as a coefficient document, and its file name."""

from pathlib import Path
from typing import Any

from actfit.coefficients import naming
from actfit.coefficients.store import Published, publish
from actfit.fitting import provenance
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.solve import Fit

UNPUBLISHED = "a fit cut short by its budget depends on the machine, and must not be published"
LIBRARIES = ("mpmath", "numba", "numpy", "python-flint", "scipy", "sympy")


def to_document(fit: Fit) -> dict[str, Any]:
    """The document of `fit`, as `coefficients.publish` takes it."""
    return {
        "function": provenance.function(fit.activation),
        "method": "fewbit",
        "options": {
            "bits": fit.bits,
            "levels": fit.levels,
            "weight": fit.weight.label,
            "domain": list(fit.domain),
        },
        "solution": {
            "borders": fit.steps.borders.tolist(),
            "codes": fit.steps.codes.tolist(),
            "levels": fit.steps.levels.tolist(),
        },
        "error": dict(vars(fit.error)),
        "provenance": {"command": command(fit), "seed": None, "versions": provenance.versions(LIBRARIES)},
    }


def command(fit: Fit) -> str | None:
    """The command that makes this fit again; None for a weight that a command line cannot name."""
    if fit.weight.spelling is None:
        return None
    words = ["--bits", str(fit.bits)]
    if fit.levels != "best":
        words += ["--levels", fit.levels]
    if fit.weight.spelling != "uniform":
        words += ["--weight", fit.weight.spelling]
    if fit.domain != fit.weight.domain:
        words += ["--domain", *map(repr, fit.domain)]
    if fit.budget is not None:  # recorded, though only a machine of the same speed would make the same fit
        words += ["--budget", repr(fit.budget)]
    return provenance.command("fitting.fewbit", fit.activation, words)


def file_name(fit: Fit) -> str:
    """`fewbit-3bit`, then every option that is not the default, in characters that suit any file system."""
    return naming.file_name(to_document(fit), fit.weight.domain)


def store(fit: Fit, root: Path) -> Published:
    """Publish `fit` below `root`, as a new version unless the newest version has the same content.

    Raises `InputError` for a fit that was cut short: the same command must give the same file everywhere.
    """
    if fit.budget is not None:
        raise InputError(f"{UNPUBLISHED}, got one of {fit.bits} bits after {fit.budget:g} s; use a larger budget")
    return publish(to_document(fit), file_name(fit), root)
