"""The lower bound on coarse cells, and the length that it takes."""

import itertools
import math

import numpy as np
import pytest

from actfit.fitting.activations import get
from actfit.fitting.fewbit.dp import partition
from actfit.fitting.joint.certificate import _length, lower_bound
from actfit.fitting.joint.plane import Plane
from actfit.fitting.joint.solve import fit_joint
from actfit.fitting.weights import named

NORMAL = named("norm")


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
