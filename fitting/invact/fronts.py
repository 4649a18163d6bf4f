"""The one loop that makes a Pareto front."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def improving(items: Iterable[T], error: Callable[[T], float]) -> list[T]:
    """Of items in order of their price, those whose error is less than that of all before them."""
    kept: list[T] = []
    for item in items:
        if not kept or error(item) < error(kept[-1]):
            kept.append(item)
    return kept
