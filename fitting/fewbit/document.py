"""A fit as a coefficient document, and the file name it goes by."""

import re
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

from coefficients.store import Published, publish
from fitting.activations import names
from fitting.activations.catalogue import CATALOGUE
from fitting.fewbit.solve import Fit

LIBRARIES = ("mpmath", "numba", "numpy", "python-flint", "scipy", "sympy")
VERSION = "0.1.0"
DEFAULT_ROOT = Path("coefficients", "data")  # below the current folder


def to_document(fit: Fit) -> dict[str, Any]:
    """The document of `fit`, as `coefficients.publish` takes it."""
    activation, steps = fit.activation, fit.steps
    return {
        "function": {"name": activation.name, "expr": activation.expr, "params": dict(activation.params)},
        "method": "fewbit",
        "options": {
            "bits": fit.bits,
            "levels": fit.levels,
            "weight": fit.weight.label,
            "domain": list(fit.domain),
        },
        "solution": {
            "borders": steps.borders.tolist(),
            "codes": steps.codes.tolist(),
            "levels": steps.levels.tolist(),
        },
        "error": dict(vars(fit.error)),
        "provenance": {"command": command(fit), "seed": None, "versions": versions()},
    }


def versions() -> dict[str, str]:
    """Of this package and of the libraries that the numbers pass through."""
    return {"actfit": VERSION, **{library: metadata.version(library) for library in LIBRARIES}}


def command(fit: Fit) -> str | None:
    """The command that makes this fit again; None for a weight that no command line can name."""
    if fit.weight.spelling is None:
        return None
    activation = fit.activation
    words = ["python", "-m", "fitting.fewbit"]
    if activation.name in names():
        words += ["--fn", activation.name]
    elif activation.expr.startswith("--"):  # which would look like an option
        words += [f"--expr={activation.expr}", "--name", activation.name]
    else:
        words += ["--expr", activation.expr, "--name", activation.name]
    for key, value in _own_params(fit).items():
        words += ["--param", f"{key}={value!r}"]
    words += ["--bits", str(fit.bits)]
    if fit.levels != "best":
        words += ["--levels", fit.levels]
    if fit.weight.spelling != "uniform":
        words += ["--weight", fit.weight.spelling]
    if fit.domain != fit.weight.domain:
        words += ["--domain", *map(repr, fit.domain)]
    return shlex.join(words)


def file_name(fit: Fit) -> str:
    """`fewbit-3bit`, and after it whatever is not by default, in characters that suit any file system."""
    parts = [f"fewbit-{fit.bits}bit"]
    parts += [fit.levels] if fit.levels != "best" else []
    parts += [f"{key}={value!r}" for key, value in _own_params(fit).items()]
    parts += [fit.weight.label] if fit.weight.label != "uniform" else []
    parts += ["domain={!r}_{!r}".format(*fit.domain)] if fit.domain != fit.weight.domain else []
    return re.sub(r"[^A-Za-z0-9._=+-]+", "_", "-".join(parts)).strip("_")


def store(fit: Fit, root: Path = DEFAULT_ROOT) -> Published:
    """Publish `fit` below `root`: a new version unless the newest one already says the same."""
    return publish(to_document(fit), file_name(fit), root)


def _own_params(fit: Fit) -> dict[str, float]:
    """The parameters that differ from the catalogue's defaults; all of them for a user's expression."""
    row = CATALOGUE.get(fit.activation.name)
    defaults = row.params if row else {}
    return {key: value for key, value in fit.activation.params.items() if defaults.get(key) != value}
