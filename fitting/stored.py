"""The expressions of stored documents, read by the grammar. `actfit check` calls `read`."""

from typing import Any

from actfit.fitting.errors import InputError
from actfit.fitting.invact.formula import read as read_formula
from actfit.fitting.provenance import stored_function


def read(document: dict[str, Any]) -> list[str]:
    """Problems of the expressions of a document that passed its schema."""
    problems = []
    try:
        stored_function(document["function"])
    except InputError as error:
        problems.append(str(error))
    branches = document["solution"].get("branches", ())
    for i, branch in enumerate(branches):
        for key in ("variable", "expression"):
            try:
                if branch[key] is not None:
                    read_formula(branch[key], branch["constants"])
            except InputError as error:
                problems.append(f"solution.branches[{i}].{key}: {error}")
    return problems
