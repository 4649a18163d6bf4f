"""The tiers of the tests. `make test` runs the quick tier, `make test-rest` the rest, `make test-all` all.

A test is in the rest if it is marked `slow`, or if it is one of a function of the catalogue that is not in `HANDFUL`.
The name of the function then is the first word of a part of the test's case, as in `test_extremes[float32-mish]`.
What is marked `repeats` shows on one more case what others show: it is in neither, and runs with all.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from actfit.coefficients import functions

COLLECTED = pytest.StashKey[list[pytest.Item]]()  # all tests found, before those of a tier are selected
TIERS = ("quick", "rest", "all")

# One with a kink; one with a jump and two parameters; one that is smooth and monotone, with a parameter; and the two
# that have a turning point and are used most.
HANDFUL = ("relu", "threshold", "softplus", "gelu", "silu")
OTHERS = frozenset(functions.names()) - frozenset(HANDFUL)


def in_ci(cases: Iterable[Any], shown: Callable[[Any], bool]) -> list[Any]:
    """The cases of a slow test, tuples for several arguments; those that are not `shown` are repeats."""
    marks = [pytest.mark.slow, pytest.mark.repeats]
    values = [(case, case if isinstance(case, tuple) else (case,)) for case in cases]
    return [pytest.param(*arguments, marks=[] if shown(case) else marks) for case, arguments in values]


def is_quick(item: pytest.Item) -> bool:
    """True if the test belongs to the quick tier."""
    if item.get_closest_marker("slow"):
        return False
    parts = item.name.partition("[")[2].removesuffix("]").split("-")
    return OTHERS.isdisjoint(re.match(r"\w*", part)[0] for part in parts)


def repeats(item: pytest.Item) -> bool:
    """True if the test belongs to neither the quick tier nor the rest."""
    return item.get_closest_marker("repeats") is not None


def select(items: list[pytest.Item], tier: str) -> list[pytest.Item]:
    """The tests of a tier, in their order."""
    if tier == "all":
        return list(items)
    return [item for item in items if not repeats(item) and is_quick(item) == (tier == "quick")]
