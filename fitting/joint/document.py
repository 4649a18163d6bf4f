"""A joint code as a coefficient document, and its file name."""

from typing import Any

from actfit.coefficients import naming
from actfit.fitting import provenance
from actfit.fitting.fewbit.document import LIBRARIES
from actfit.fitting.joint.solve import DEFAULT_WEIGHT, JointFit


def to_document(fit: JointFit) -> dict[str, Any]:
    """The document of `fit`, as `coefficients.publish` takes it."""
    return {
        "function": provenance.function(fit.activation),
        "method": "joint",
        "options": {
            "bits": fit.bits,
            "lambda": fit.output_weight,
            "weight": fit.weight.label,
            "domain": list(fit.domain),
        },
        "solution": {key: values.tolist() for key, values in vars(fit.table).items()},
        "error": dict(vars(fit.error)),
        "provenance": {"command": command(fit), "seed": None, "versions": provenance.versions(LIBRARIES)},
    }


def command(fit: JointFit) -> str | None:
    """The command that makes this fit again; None for a weight that a command line cannot name."""
    if fit.weight.spelling is None:
        return None
    words = ["--bits", str(fit.bits), "--joint"]
    if fit.output_weight != 1.0:
        words += ["--lambda", repr(fit.output_weight)]
    if fit.weight.spelling != DEFAULT_WEIGHT:
        words += ["--weight", fit.weight.spelling]
    if fit.domain != fit.weight.domain:
        words += ["--domain", *map(repr, fit.domain)]
    return provenance.command("fitting.fewbit", fit.activation, words)


def file_name(fit: JointFit) -> str:
    """`joint-4bit`, then every option that is not the default, in characters that suit any file system."""
    return naming.file_name(to_document(fit), fit.weight.domain)
