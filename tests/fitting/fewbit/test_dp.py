"""The best partition against every partition, against exact arithmetic, and against the dense programme."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.blocks import TABLE_CELLS, _cost, _cut_after, best_cuts
from actfit.fitting.fewbit.dp import EPS, TINY, _scaled, partition, prefix_sums, turning_points
from tests.fitting.fewbit.references import gelu
from tests.fitting.partitions import best_of_all

Array = NDArray[np.float64]
Atoms = tuple[list[float], list[float]]

INTEGERS = st.integers(-4, 4).map(float)  # many exact ties
WIDE = st.builds(lambda m, e: m * 10.0**e, st.floats(-1, 1), st.integers(-12, 12))
SOME = st.integers(0, 3).map(float)
WIDE_MASSES = st.builds(lambda m, e: m * 10.0**e, st.floats(0, 1), st.integers(-40, 10))


@st.composite
def atoms(draw: st.DrawFn) -> Atoms:
    """Values in any order, ascending or descending; masses, some of them 0."""
    values = draw(st.lists(draw(st.sampled_from([INTEGERS, WIDE])), min_size=1, max_size=9))
    if draw(st.booleans()):
        values.sort(reverse=draw(st.booleans()))
    masses = st.lists(draw(st.sampled_from([SOME, WIDE_MASSES])), min_size=len(values), max_size=len(values))
    return values, draw(masses)


def exact_cost(values: list[float], masses: list[float]) -> Fraction:
    pairs = [(Fraction(p), Fraction(u)) for p, u in zip(values, masses, strict=True)]
    mass = sum(u for _, u in pairs)
    if mass == 0:
        return Fraction(0)
    mean = sum(u * p for p, u in pairs) / mass
    return sum((u * (p - mean) ** 2 for p, u in pairs), Fraction(0))


def exact_segments(values: list[float], masses: list[float]) -> dict[tuple[int, int], Fraction]:
    n = len(values)
    return {(j, i): exact_cost(values[j:i], masses[j:i]) for j in range(n) for i in range(j + 1, n + 1)}


def best_by_fractions(values: list[float], masses: list[float], k: int) -> Fraction:
    """By the textbook programme, in exact arithmetic."""
    n = len(values)
    costs = exact_segments(values, masses)
    best = [costs[0, i] if i else Fraction(0) for i in range(n + 1)]
    for _ in range(1, k):
        best = [min([best[i], *(best[j] + costs[j, i] for j in range(i))]) for i in range(n + 1)]
    return best[n]


def best_by_dense(values: Array, masses: Array, k: int) -> list[float]:
    """By the textbook programme on the full matrix: the least cost for 1 .. k segments. O(n^2 k)."""
    p, u = values.astype(np.longdouble), masses.astype(np.longdouble)
    p = p - (u @ p) / u.sum()
    w, s, q = (np.concatenate(([0], np.cumsum(x))) for x in (u, u * p, u * p * p))
    mass = np.subtract.outer(w, w).T
    mass[mass <= 0] = np.inf
    cost = np.subtract.outer(q, q).T - np.subtract.outer(s, s).T ** 2 / mass
    cost[np.tril_indices(len(q), -1)] = np.inf
    best = [cost[0]]
    for _ in range(1, k):
        best.append((best[-1][:, None] + cost).min(axis=0))
    return [float(row[-1]) for row in best]


def cost_of(cuts: NDArray[np.int64], values: list[float], masses: list[float]) -> Fraction:
    edges = [0, *cuts.tolist(), len(values)]
    return sum((exact_cost(values[j:i], masses[j:i]) for j, i in itertools.pairwise(edges)), Fraction(0))


def noise(x: Array) -> Array:
    return np.random.default_rng(5).normal(size=x.size)


CURVES: dict[str, Callable[[Array], Array]] = {
    "line": lambda x: x,
    "cube, falling": lambda x: -(x**3),
    "gelu'": gelu,
    "tanh'": lambda x: 1 / np.cosh(x) ** 2,
    "snake', 6 turns": lambda x: 1 + np.sin(x),
    "snake', 63 turns": lambda x: 1 + np.sin(10 * x),
    "relu' by tanh": lambda x: np.tanh(20 * x),
    "stairs": lambda x: np.floor(3 * np.sin(x) + x),
    "walk": lambda x: np.cumsum(noise(x)),
    "noise": noise,
    "sorted noise": lambda x: np.sort(noise(x)),
    "stairs with ripples": lambda x: np.floor(x) + 1e-3 * np.sin(99 * x),
    "line with noise in the last bits": lambda x: 1 + 1e-12 * x + 2e-16 * noise(x),
    "far from zero": lambda x: 1e9 + gelu(x),
}
MASSES: dict[str, Callable[[Array], Array]] = {
    "equal": np.ones_like,
    "gauss": lambda x: np.exp(-x * x / 2),
    "gaps": lambda x: np.abs(np.sin(7 * x)) * (np.random.default_rng(1).random(x.size) < 0.7),
}


@given(atoms(), st.integers(1, 10))
@example(([0.0, 1.0, 2.0], [0.0, 0.0, 0.0]), 1)
@example(([0.0, 1.0, 3.0], [1.5e308, 1.5e308, 1.5e308]), 2)  # a total too great for float64
@example(([0.0, 1e-200], [1.0, 1.0]), 1)  # a cost too small for float64
@example(([0.0, 1.0], [1e300, 1e-300]), 1)  # the second mass is lost in scaling
@example(([0.0, 1e10, 2e10, 4e10, 5e10], [1.0, 1e-20, 1e-20, 1e-20, 1e-20]), 3)  # and here in plain sums
def test_no_partition_is_better(case: Atoms, k: int) -> None:
    values, masses = case
    got = partition(values, masses, k)
    assert got.cuts.dtype == np.int64
    assert got.cuts.size < k
    assert ((got.cuts > 0) & (got.cuts < len(values))).all()
    assert (np.diff(got.cuts) > 0).all()
    best = best_of_all(lambda a, b: exact_cost(values[a:b], masses[a:b]), len(values), k)
    assert abs(Fraction(got.cost) - best) <= Fraction(got.slack)
    assert abs(Fraction(got.cost) - cost_of(got.cuts, values, masses)) <= Fraction(got.slack)


@pytest.mark.parametrize("mass", MASSES)
@pytest.mark.parametrize("curve", CURVES)
def test_agrees_with_the_dense_programme(curve: str, mass: str) -> None:
    for n in (2, 61, 150):  # the dense programme takes a time of n**2
        x = np.linspace(-10, 10, n)
        values, masses = CURVES[curve](x), MASSES[mass](x)
        dense = best_by_dense(values, masses, 64)
        of_dense = 1e-15 * dense[0] + 1e-18 * masses.sum() * np.ptp(values) ** 2  # its own rounding
        for k in (1, 2, 3, 8, 17, 64):
            got = partition(values, masses, k)
            assert got.cost == pytest.approx(dense[k - 1], rel=0, abs=got.slack + of_dense)
            assert got.slack <= 1e-9 * dense[0] + 1e-28


@given(atoms(), st.integers(1, 9), st.integers(-60, 60), st.integers(-60, 60))
def test_scaling_by_powers_of_two_is_exact(case: Atoms, k: int, m: int, e: int) -> None:
    values, masses = map(np.array, case)
    least = np.finfo(np.float64).tiny * 2.0 ** max(0, -e)
    assume(((masses == 0) | (masses >= least)).all())  # numbers below the least normal one lose digits by scaling
    assume(((values == 0) | (abs(values) >= 2.0**-450)).all())  # nor may squares of scaled ones be below it
    got, scaled = partition(values, masses, k), partition(values * 2.0**m, masses * 2.0**e, k)
    assert scaled.cuts.tolist() == got.cuts.tolist()
    assert scaled.cost == math.ldexp(got.cost, 2 * m + e)


@given(atoms(), st.integers(1, 9), st.data())
def test_atoms_without_mass_change_nothing(case: Atoms, k: int, data: st.DataObject) -> None:
    values, masses = case
    at = data.draw(st.integers(0, len(values)))
    got = partition(values, masses, k)
    wild = partition([*values[:at], 1e300, *values[at:]], [*masses[:at], 0.0, *masses[at:]], k)
    assert (wild.cost, wild.slack) == (got.cost, got.slack)
    assert wild.cuts.tolist() == [cut + (cut >= at) for cut in got.cuts.tolist()]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40))
def test_enough_segments_cost_nothing(values: list[int]) -> None:
    changes = [i for i in range(1, len(values)) if values[i] != values[i - 1]]
    got = partition(values, np.ones(len(values)), len(changes) + 1)
    assert (got.cuts.tolist(), got.cost, got.slack) == (changes, 0.0, 0.0)
    if changes:
        assert partition(values, np.ones(len(values)), len(changes)).cost > 0


def test_of_equally_good_cuts_the_left() -> None:
    assert partition([0, 1, 2], [1, 1, 1], 2).cuts.tolist() == [1]
    assert partition([0, 1, 0], [1, 1, 1], 2).cuts.tolist() == [1]
    assert partition([2, -1, -2, -1, 2], [1, 1, 1, 1, 1], 2).cuts.tolist() == [1]


@pytest.mark.parametrize("curve", ["line", "gelu'", "snake', 6 turns", "walk"])
def test_halving_finds_the_cuts_of_the_table(curve: str) -> None:
    n, k = 400, 11
    values, masses = CURVES[curve](np.linspace(-10, 10.1, n)), np.ones(n)
    values -= values.mean()
    sums = prefix_sums(values[:, np.newaxis], masses, np.arange(n))
    turns = turning_points(values, 0.0)
    assert k * (n + 1) <= TABLE_CELLS
    cuts = best_cuts(sums, turns, k, 0.0)
    for half in range(1, k):
        assert _cut_after(sums, turns, 0, k, half, 0.0) == cuts[half - 1]


def test_searches_too_big_for_the_table_join_up() -> None:
    n, k = 40_000, 150
    values = gelu(np.linspace(-10, 10, n))
    assert k * np.count_nonzero(np.diff(values)) > TABLE_CELLS  # as equal neighbours are one
    got = partition(values, np.ones(n), k)
    assert got.cuts.size == k - 1
    edges = [0, *got.cuts.tolist(), n]
    for j, i in ((0, 40), (30, 90), (70, 150)):  # parts of a best partition are best partitions
        part = slice(edges[j], edges[i])
        again = partition(values[part], np.ones(n)[part], i - j)
        assert (again.cuts + edges[j]).tolist() == edges[j + 1 : i]


def test_turning_points_pass_over_noise() -> None:
    assert turning_points(np.array([0.0, 1, 2, 1, 0, 3]), 0.0).tolist() == [0, 2, 4, 5]
    assert turning_points(np.array([0.0, 1, 2, 1, 0, 3]), 2.0).tolist() == [0, 5]
    x = np.linspace(0, 9, 1000)
    tail = 1 + np.exp(-x) + 2e-16 * noise(x)
    tail[900:] = tail[899] + 2e-16 * noise(x[900:])
    assert turning_points(tail, 0.0).size > 10
    assert turning_points(tail, 4e-15).tolist() == [0, 999]


@given(st.lists(INTEGERS, min_size=2, max_size=30), st.sampled_from([0.0, 1.0, 2.5]))
def test_pieces_between_turning_points_are_monotone(values: list[float], tolerance: float) -> None:
    p = np.array(values)
    turns = turning_points(p, tolerance)
    assert turns[0] == 0
    assert turns[-1] == p.size - 1
    for a, b in itertools.pairwise(turns.tolist()):
        piece = p[a : b + 1]
        falls = (np.maximum.accumulate(piece) - piece).max()
        rises = (piece - np.minimum.accumulate(piece)).max()
        assert min(falls, rises) <= tolerance


@given(st.lists(st.tuples(WIDE, WIDE_MASSES), min_size=1, max_size=40))
def test_prefix_sums_carry_twice_the_digits(pairs: list[tuple[float, float]]) -> None:
    p, u = (np.array(x) for x in zip(*pairs, strict=True))
    last = prefix_sums(p[:, np.newaxis], u, np.arange(p.size))[-1].tolist()
    for terms, high, low in ((u, last[0], last[1]), (u * p, last[3], last[4])):
        exact = sum(map(Fraction, terms.tolist()))
        size = sum(map(abs, map(Fraction, terms.tolist())))
        assert abs(Fraction(high) + Fraction(low) - exact) <= p.size * size / 2**104 + Fraction(5e-324)


@given(atoms())
@example(([-1.0, 1e10, 2e10, 4e10, 1.0], [1.0, 1e-20, 1e-20, 1e-20, 1.0]))
def test_segment_costs_are_right_to_tau(case: Atoms) -> None:
    p, u = (_scaled(np.array(x))[0] for x in case)  # as the search does, or squares of tiny masses are 0
    p = p - (u @ p / u.sum() if u.any() else 0.0)
    sums = prefix_sums(p[:, np.newaxis], u, np.arange(p.size))
    noise = EPS * (sums[-1, 2] + p.size * EPS * sums[-1, 0] * np.abs(p).max() ** 2) + TINY
    for (j, i), exact in exact_segments(p.tolist(), u.tolist()).items():
        got = _cost(sums, j, i)
        assert got >= 0
        assert abs(Fraction(got) - exact) <= 12 * Fraction(noise)


@pytest.mark.parametrize(
    ("values", "masses", "k", "words"),
    [
        ([[1.0, 2.0, 3.0]], [1.0], 1, "values must be one row of at least one number or pair"),
        ([[1.0, math.nan]], [1.0], 1, "values must be finite, got nan at 0"),
        ([1.0, 2.0], [1.0], 1, "masses must have shape"),
        ([1.0, math.nan], [1.0, 1.0], 1, "values must be finite, got nan at 1"),
        ([1.0, 2.0], [1.0, math.inf], 1, "masses must be finite and 0 or more, got inf at 1"),
        ([1.0, 2.0], [1.0, 1.0], 0, "k must be 1 or more, got 0"),
    ],
)
def test_bad_arguments_are_named(values: list[float], masses: list[float], k: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        partition(values, masses, k)


def test_a_cost_beyond_float64_is_an_error() -> None:
    with pytest.raises(OverflowError):
        partition([-1e300, 1e300], [1.0, 1.0], 1)
