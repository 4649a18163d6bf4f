"""Activations by the names of the catalogue, which is `coefficients.functions`."""

import math

from actfit.coefficients.functions import ALIASES, CATALOGUE, Row, names
from actfit.fitting.activations.activation import Activation
from actfit.fitting.activations.grammar import parse
from actfit.fitting.errors import InputError, nearest

__all__ = ["ALIASES", "CATALOGUE", "Row", "get", "names"]


def get(name: str, /, **params: float) -> Activation:
    """The catalogue's activation `name`, with any of its parameters set.

    Parameters
    ----------
    name : str
        A function of the catalogue, or another name of it: "swish".
    **params : float
        Parameters by their names; the others have the catalogue's values.

    Raises
    ------
    InputError
        For an unknown name or parameter and for a value the function does not allow.
    """
    name = ALIASES.get(name, name)
    if name not in CATALOGUE:
        raise InputError(f"unknown function {name!r}; {nearest(name, [*CATALOGUE, *ALIASES])}")
    row = CATALOGUE[name]
    for key, value in params.items():
        if key not in row.params:
            known = f"{name} has {', '.join(row.params)}" if row.params else f"{name} has none"
            raise InputError(f"unknown parameter {key!r}; {known}")
        if not math.isfinite(value):
            raise InputError(f"parameter {key} must be finite, got {value}")
    values = {**row.params, **{key: float(value) for key, value in params.items()}}
    if row.rule and not parse(row.rule[1], values) > 0:
        raise InputError(f"{row.rule[0]}, got {', '.join(f'{key}={value:g}' for key, value in values.items())}")
    return Activation(name, row.expr, values)
