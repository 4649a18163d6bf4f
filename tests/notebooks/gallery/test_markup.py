"""Escaping, numbers, ticks, and thinned curves."""

import numpy as np
import pytest
from markupsafe import Markup

from notebooks.gallery.markup import tag
from notebooks.gallery.numbers import short
from notebooks.gallery.svg import SEEN, Panel, path, thinned, ticks


def test_text_is_escaped_and_markup_is_not():
    assert tag("text", "<script>&", Markup("<b>x</b>")) == "<text>&lt;script&gt;&amp;<b>x</b></text>"
    assert tag("path", d='"><script>') == '<path d="&#34;&gt;&lt;script&gt;"/>'
    assert tag("g", tag("title", "<")) == "<g><title>&lt;</title></g>"


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0, "0"), (-0.25, "−0.25"), (1.5e-7, "1.5×10⁻⁷"), (1e-5, "10⁻⁵"), (-2e16, "−2×10¹⁶"), (None, "–"), (12.0, "12")],
)
def test_short(value, words):
    assert short(value) == words


@pytest.mark.parametrize("ends", [(-3.0, 3.0), (0.0, 1.0), (-0.1, 0.1), (-1e-7, 1e-7), (0.0, 20.0), (-0.17, 3.2)])
def test_ticks(ends):
    lo, hi = ends
    marks = ticks(lo, hi, least=4)
    assert 4 <= len(marks) <= 11
    assert lo <= marks[0] <= marks[-1] <= hi
    steps = np.diff(marks)
    assert steps == pytest.approx(steps[0])
    assert 0.0 in marks or lo > 0


def test_thinned_curves_look_the_same():
    x = np.linspace(0, 300, 3000)
    points = np.column_stack([x, 60 + 10 * np.sin(x / 10) + np.sin(x)])
    kept = thinned(points)
    assert 100 < len(kept) < 1000
    steepest = np.abs(np.diff(points[:, 1]) / np.diff(x)).max()  # SEEN is across the curve, here it is upright
    assert np.abs(np.interp(x, kept[:, 0], kept[:, 1]) - points[:, 1]).max() < SEEN * np.hypot(1, steepest)
    straight = np.column_stack([x, 2 * x])
    assert thinned(straight).tolist() == straight[[0, -1]].tolist()


def test_paths_do_not_drift():
    rng = np.random.default_rng(0)
    points = np.cumsum(rng.uniform(0, 1, (500, 2)), axis=0)
    start, moves = path(points)[1:].split("l")
    numbers = np.array([*map(float, start.split()), *map(float, moves.split())]).reshape(-1, 2)
    assert np.abs(np.cumsum(numbers, axis=0)[-1] - points[-1]).max() < 0.051


def test_panels_have_gaps_where_there_is_no_number_and_keep_within_their_edges():
    panel = Panel((0.0, 1.0), (0.0, 1.0), 10, 100)
    panel.curve(np.linspace(0, 1, 6), np.array([0.0, 0.5, np.nan, 5.0, 0.5, 0.0]), "curve")
    assert panel.inside[0].count("M") == 2
    assert panel.at(np.array([0.5]), np.array([5.0]))[0, 1] == 10
