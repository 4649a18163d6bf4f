"""The best partition by looking at all of them."""

import itertools
from collections.abc import Callable
from typing import Any


def best_of_all(cost: Callable[[int, int], Any], n: int, k: int) -> Any:
    """The least total of `cost(a, b)` over the runs of at most k that n atoms are cut into."""
    return min(
        sum(itertools.starmap(cost, itertools.pairwise((0, *cuts, n))))
        for segments in range(1, min(k, n) + 1)
        for cuts in itertools.combinations(range(1, n), segments - 1)
    )
