"""The lemmas of the lower bound, and the bound itself on coarse cells."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actfit.fitting.activations import get
from actfit.fitting.fewbit.dp import partition
from actfit.fitting.joint.certificate import _length, lower_bound
from actfit.fitting.joint.plane import Plane
from actfit.fitting.joint.solve import fit_joint
from actfit.fitting.weights import named

NORMAL = named("norm")
UNITS = st.floats(-2, 2)
ATOMS = st.lists(st.tuples(UNITS, UNITS, st.floats(0.01, 1)), min_size=2, max_size=10)


def spare_of(points: np.ndarray, masses: np.ndarray) -> tuple[float, float]:
    mean = np.average(points, axis=0, weights=masses)
    spread = float(masses @ ((points - mean) ** 2).sum(axis=1))
    return math.sqrt(masses.sum() * spread), spread


@given(ATOMS, st.tuples(UNITS, UNITS), st.tuples(UNITS, UNITS), st.integers(0, 9))
def test_one_border_inside_a_cell(atoms, u, v, cut):
    points, masses = np.array(atoms)[:, :2], np.array(atoms)[:, 2]
    spare, _ = spare_of(points, masses)
    to_u, to_v = (((points - level) ** 2).sum(axis=1) * masses for level in (np.array(u), np.array(v)))
    parted = to_u[:cut].sum() + to_v[cut:].sum()
    # Sums of ten numbers of at most 32 round by less than 1e-12.
    assert min(to_u.sum(), to_v.sum()) <= parted + math.dist(u, v) * spare + 1e-12


@given(ATOMS, st.lists(st.tuples(UNITS, UNITS), min_size=1, max_size=3))
def test_the_mean_on_a_whole_cell_costs_its_spread(atoms, levels):
    points, masses = np.array(atoms)[:, :2], np.array(atoms)[:, 2]
    _, spread = spare_of(points, masses)
    nearest = min(float(masses @ ((points - np.array(level)) ** 2).sum(axis=1)) for level in levels)
    assert spread <= nearest + 1e-12  # no single level costs less than the mean


@pytest.mark.parametrize("name", ["gelu", "mish", "hardswish", "tanh"])
@pytest.mark.parametrize("k", [3, 17])
def test_means_of_successive_intervals_are_no_longer_a_way_than_the_curve(name, k):
    plane = Plane(get(name), 1.0, NORMAL, (-4.0, 4.0))
    means = plane.intervals(np.linspace(-4, 4, k + 1)[1:-1]).mean
    length = _length(plane, plane.cells(1e-3))
    assert np.hypot(*np.diff(means, axis=0).T).sum() <= length
    x = np.linspace(-4, 4, 100_001)
    chords = np.hypot(np.diff(get(name).df(x)), np.diff(get(name).f(x))).sum()
    assert chords <= length <= 1.5 * chords  # at most the square root of 2 more, and rounding of cells


@pytest.mark.parametrize("name", ["gelu", "selu", "hardswish", "tanh"])
def test_the_bound_holds_on_coarse_cells_too(name):
    """On coarse cells the optimum is above the true one; only the subtracted gain keeps the bound below."""
    needed = False
    for bits, spare in itertools.product((1, 2, 3), (1e-2, 1e-3, 1e-4, 1e-5)):
        reached = fit_joint(get(name), bits).error.total
        plane = Plane(get(name), 1.0, NORMAL, NORMAL.domain)
        cells = plane.cells(spare * plane.mass * plane.reach)
        held = cells.moments.mass > 0
        best = partition(cells.moments.mean[held], cells.moments.mass[held], 2**bits)
        bound, gain = lower_bound(plane, cells, 2**bits, best.cost, best.slack)
        assert gain >= 0
        assert bound <= reached
        needed |= math.fsum(cells.moments.spread) + best.cost > reached * (1 + 1e-6)
    assert needed


def test_the_length_counts_leaps_of_both() -> None:
    """threshold: 20 up to 0.1, then x: f leaps by 19.9 and f' by 1."""
    plane = Plane(get("threshold"), 1.0, NORMAL, (-7.0, 7.0))
    assert plane.leaps.tolist() == [[1.0, pytest.approx(-19.9)]]
    assert _length(plane, plane.cells(1e-3)) >= 19.9 + 6.9
