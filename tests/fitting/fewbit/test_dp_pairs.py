"""Partitions of pairs, against every partition in exact arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actfit.fitting.fewbit.dp import partition
from tests.fitting.partitions import best_of_all

INTEGERS = st.integers(-4, 4).map(float)  # many exact ties
WIDE = st.builds(lambda m, e: m * 10.0**e, st.floats(-1, 1), st.integers(-6, 6))
POINTS = st.lists(st.tuples(st.sampled_from([0.0, 1.0, 0.3]), INTEGERS, WIDE), min_size=1, max_size=8)


def exact_cost(rows: list[tuple[float, ...]]) -> Fraction:
    """The cost of a segment of (mass, value, value) rows."""
    masses, *components = ([Fraction(x) for x in column] for column in zip(*rows, strict=True))
    mass = sum(masses)
    if not mass:
        return Fraction(0)
    means = [sum(u * p for u, p in zip(masses, column, strict=True)) / mass for column in components]
    return sum(
        (
            u * (p - mean) ** 2
            for column, mean in zip(components, means, strict=True)
            for u, p in zip(masses, column, strict=True)
        ),
        Fraction(0),
    )


@given(POINTS, st.integers(1, 6), st.booleans())
def test_no_partition_is_better(rows: list[tuple[float, float, float]], k: int, ordered: bool) -> None:
    if ordered:
        rows = [(u, *values) for (u, _, _), values in zip(rows, sorted(row[1:] for row in rows), strict=True)]
    masses, values = np.array([row[0] for row in rows]), np.array([row[1:] for row in rows])
    got = partition(values, masses, k)
    assert got.cuts.size < k
    best = best_of_all(lambda a, b: exact_cost(rows[a:b]), len(rows), k)
    assert abs(Fraction(got.cost) - best) <= Fraction(got.slack)


@pytest.mark.parametrize("k", [2, 7, 32])
def test_a_component_that_is_constant_changes_nothing(k: int) -> None:
    x = np.linspace(-5, 5, 3000)
    derivative, mass = 1 / (1 + np.exp(-x)) + np.exp(-x * x), np.exp(-x * x / 2)
    alone = partition(derivative, mass, k)
    beside = partition(np.column_stack([derivative, np.full(x.size, 3.0)]), mass, k)
    assert beside.cuts.tolist() == alone.cuts.tolist()
    assert beside.cost == alone.cost


@pytest.mark.parametrize("turned", [0.0, 0.4, math.pi / 2])
def test_turning_the_plane_changes_no_cost(turned: float) -> None:
    """A rotation changes no distance, and so no cost, but it changes which components are monotone."""
    x = np.linspace(-4, 4, 2000)
    values, mass = np.column_stack([np.tanh(x), np.sin(2 * x)]), np.ones(x.size)
    rotation = np.array([[math.cos(turned), -math.sin(turned)], [math.sin(turned), math.cos(turned)]])
    upright, rotated = partition(values, mass, 12), partition(values @ rotation, mass, 12)
    # The rotation rounds each value by at most 3 half units in the last place of 1.5, the largest |value|, which
    # changes the root of a cost by at most that times the root of the mass.
    rounding = 3 * 2**-53 * 1.5 * math.sqrt(x.size)
    roots = math.sqrt(upright.cost), math.sqrt(rotated.cost)
    assert abs(roots[0] - roots[1]) <= rounding + (upright.slack + rotated.slack) / min(roots)
