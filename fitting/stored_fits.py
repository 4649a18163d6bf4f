"""The stored fits of a function, as numbers: shipped tables, shipped formulas, and those of the InvAct paper."""

import numpy as np

from actfit.coefficients import load
from actfit.coefficients.store import available
from actfit.fitting.activations import Activation, get, names
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.steps import Steps
from actfit.fitting.invact.document import candidate_of
from actfit.fitting.invact.engines.papers import ENGINE, published
from actfit.fitting.invact.formula import Candidate
from actfit.fitting.weights import Weight, uniform


def stored_table(
    activation: Activation, bits: int, levels: str, weight: Weight, domain: tuple[float, float]
) -> tuple[Steps, float, float] | None:
    """The shipped table for these arguments, its squared error and its largest error; None if there is none."""
    usual = uniform()
    is_shipped = levels in ("best", "shared") and (weight.label, domain) == (usual.label, usual.domain)
    name = f"fewbit-{bits}bit"
    if not is_shipped or name not in _names(activation):
        return None
    document = load(activation.name, name)
    steps = Steps(*(np.array(document["solution"][key]) for key in ("borders", "codes", "levels")))
    return steps, float(document["error"]["l2_squared"]), float(document["error"]["linf"])


def stored_formulas(activation: Activation, dtype: str) -> tuple[Candidate, ...]:
    """The shipped formulas of the output for a dtype. Raises `InputError` where there are none."""
    name = f"invact-{dtype}"
    if name not in _names(activation):
        raise InputError(
            f"formulas of the output are stored for the catalogue's functions as they are, got {activation.name}; "
            "actfit invact fits others"
        )
    return tuple(map(candidate_of, load(activation.name, name)["solution"]["branches"]))


def published_formulas(activation: Activation) -> tuple[Candidate, ...]:
    """The InvAct paper's formulas. Raises `InputError` where it has none."""
    candidates = published(activation.name) if _catalogued(activation) else None
    if candidates is None:
        raise InputError(f"engine {ENGINE} has formulas for gelu and silu, got {activation.name}")
    return candidates


def _names(activation: Activation) -> set[str]:
    """The names of the stored fits of this function; none if it is not the catalogue's."""
    if not _catalogued(activation):
        return set()
    return {entry.name for entry in available() if entry.function == activation.name}


def _catalogued(activation: Activation) -> bool:
    """Whether this is the catalogue's function of its name, with the catalogue's parameters."""
    return activation.name in names() and activation.f_expression == get(activation.name).f_expression
