"""The origin of a fit in coefficient files: function, command, versions; and checks of stored functions and errors."""

import shlex
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from actfit.coefficients.command import version
from actfit.coefficients.meaning import HALF
from actfit.fitting.activations import Activation, from_expression, get, names
from actfit.fitting.activations.catalogue import CATALOGUE
from actfit.fitting.errors import InputError


def function(activation: Activation) -> dict[str, Any]:
    """The `function` part of a document."""
    return {"name": activation.name, "expr": activation.expr, "params": dict(activation.params)}


def versions(libraries: Sequence[str]) -> dict[str, str]:
    """The versions of this package and of the libraries that computed the numbers."""
    return {"actfit": version(), **{library: metadata.version(library) for library in libraries}}


def command(module: str, activation: Activation, options: Sequence[str]) -> str | None:
    """The command line that fits `activation` with `options` again; None if a file name in it is not valid text."""
    words = ["python", "-m", module]
    if activation.name in names():
        words += ["--fn", activation.name]
    elif activation.expr.startswith("--"):  # which would look like an option
        words += [f"--expr={activation.expr}", "--name", activation.name]
    else:
        words += ["--expr", activation.expr, "--name", activation.name]
    for key, value in own_params(activation).items():
        words += ["--param", f"{key}={value!r}"]
    line = shlex.join([*words, *options])
    return None if HALF.search(line) else line


def own_params(activation: Activation) -> dict[str, float]:
    """The parameters that differ from the catalogue's defaults; all of them for a user's expression."""
    row = CATALOGUE.get(activation.name)
    defaults = row.params if row else {}
    return {key: value for key, value in activation.params.items() if defaults.get(key) != value}


def stored_function(function: Mapping[str, Any]) -> Activation:
    """The function of a file. If it has a name of the catalogue, it must be the catalogue's function."""
    activation = from_expression(function["expr"], function["name"], function["params"])
    if function["name"] in names():
        known = get(function["name"], **function["params"])
        if known.f_expression != activation.f_expression:
            raise InputError(f"function.expr must be {known.expr!r} for {known.name}, got {activation.expr!r}")
    return activation


def differences(
    stored: Mapping[str, Any], recomputed: Mapping[str, Any], relative: float, absolute: float = 0.0
) -> list[str]:
    """Problems of stored errors, compared with recomputed ones; 0 and None must be equal."""
    return [
        f"error.{key} must be {value!r} as recomputed, got {stored[key]!r}"
        for key, value in recomputed.items()
        if stored[key] != value
        and not (value and stored[key] and abs(stored[key] - value) <= max(absolute, relative * abs(stored[key])))
    ]
