"""Documents for the tests of coefficients: two valid ones, and functions that corrupt them."""

import copy
from typing import Any

from actfit.coefficients.document import digest

Document = dict[str, Any]


def relu_fit() -> Document:
    """The derivative of relu in one bit, which is exact."""
    return {
        "function": {"name": "relu", "expr": "where(x > 0, x, 0)", "params": {}},
        "method": "fewbit",
        "options": {"bits": 1, "levels": "best", "weight": "uniform", "domain": [-10.0, 10.0]},
        "solution": {"borders": [0.0], "codes": [0, 1], "levels": [0.0, 1.0]},
        "error": {"l2_squared": 0.0, "linf": 0.0, "linf_at": None, "lower_bound": 0.0, "gap": 0.0},
        "provenance": {"command": None, "seed": None, "versions": {"actfit": "0.1.0"}},
    }


def bump_fit() -> Document:
    """A table of the right form with shared levels and an error; not the best one of any function."""
    return {
        "function": {"name": "bump", "expr": "x*sigmoid(beta*x)", "params": {"beta": 1.5}},
        "method": "fewbit",
        "options": {"bits": 2, "levels": "shared", "weight": "norm(0,2)", "domain": [-10, 10.0]},
        "solution": {"borders": [-3.1, -0.2, 1.1, 4.0], "codes": [1, 0, 1, 2, 1], "levels": [-0.1, 0.1, 1.05]},
        "error": {"l2_squared": 0.3, "linf": 0.2, "linf_at": -0.2, "lower_bound": 0.1, "gap": (0.3 - 0.1) / 0.3},
        "provenance": {
            "command": "python -m fitting.fewbit --fn bump --bits 2",
            "seed": 7,
            "versions": {"actfit": "0.1.0", "numpy": "2.4.6"},
        },
    }


def changed(document: Document, path: tuple[str | int, ...], value: Any) -> Document:
    """A copy with the member at path set to value."""
    result: Any = copy.deepcopy(document)
    at = result
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return dict(result)


def without(document: Document, path: tuple[str | int, ...]) -> Document:
    """A copy that lacks the member at path."""
    result = copy.deepcopy(document)
    at: Any = result
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return result


def rehashed(document: Document) -> Document:
    """A copy with its hash recomputed; with non-finite numbers, which cannot be hashed, it keeps the old one."""
    try:
        return {**document, "sha256": digest(document)}
    except ValueError:
        return document


def paths(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path of every member of a document, including nested ones."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, inner in members for path in ((*at, key), *paths(inner, (*at, key)))]
