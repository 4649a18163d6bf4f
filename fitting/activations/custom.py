"""An activation that a user writes as an expression, and the refusal of what is none."""

import math
import re
from collections.abc import Mapping
from types import FunctionType

from actfit.fitting.activations.activation import Activation
from actfit.fitting.activations.vocabulary import RESERVED
from actfit.fitting.errors import InputError, shortened


def from_expression(expr: str, name: str = "custom", params: Mapping[str, float] | None = None) -> Activation:
    """A user's own activation.

    Parameters
    ----------
    expr : str
        Text of the grammar in `fitting.activations.grammar`, a function of `x`.
    name : str
        Its name in files.
    params : mapping, optional
        The values of all other names in the expression.

    Raises
    ------
    InputError
        For text outside the grammar, an expression without x, a bad name, or a parameter that is badly named, not
        finite or not in the expression.
    """
    params = {key: float(value) for key, value in (params or {}).items()}
    for kind, word in [("name", name), *(("parameter", key) for key in params)]:
        if not word.isidentifier() or not word.isascii() or (kind == "parameter" and word in RESERVED):
            raise InputError(f"{kind} must be letters, digits and underscores, and no function's name, got {word!r}")
    for key, value in params.items():
        if not math.isfinite(value):
            raise InputError(f"parameter {key} must be finite, got {value}")
        if key not in re.findall(r"\w+", expr):
            raise InputError(f"parameter {key} must be in the expression, got {expr.strip()!r}")
    return Activation(name, expr.strip(), params)


def check_activation(activation: object) -> None:
    """Raise InputError for what is no `Activation`, such as a Python function or a name."""
    if isinstance(activation, Activation):
        return
    got, way_out = shortened(repr(activation), 100), ""
    if isinstance(activation, FunctionType):
        got = f"the function {activation.__name__}"
        way_out = "; the text for one of torch: actfit.elementwise(f).expressions()[0][0]"
    example = "get('gelu') or from_expression('x*sigmoid(1.7*x)')"
    raise InputError(f"activation must be of fitting.activations, written as {example}, got {got}{way_out}")
