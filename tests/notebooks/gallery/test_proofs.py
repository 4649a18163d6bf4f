"""The bars of errors and gaps: those of the files, on one scale."""

import re

import numpy as np
import pytest

from coefficients import load
from coefficients.store import Entry
from fitting.activations import get
from notebooks.gallery.fits import FewBit, Joint
from notebooks.gallery.proofs import proof_pictures
from notebooks.gallery.shelves import Shelf
from notebooks.gallery.svg import Panel

BITS = {"fewbit": range(1, 9), "joint": range(2, 9)}
PATHS = {kind: rf'<path class="{kind}" d="([^"]*)"' for kind in ("bar", "bar gap", "curve bound")}


def shelf(name: str, method: str) -> Shelf:
    kind, fits = {"fewbit": FewBit, "joint": Joint}[method], []
    for bits in BITS[method]:
        document = load(name, f"{method}-{bits}bit")
        fits.append(kind(Entry(name, f"{method}-{bits}bit", 1, None), "", document, get(name)))
    return Shelf(name, tuple(fits[:4]), tuple(fits[4:]))


@pytest.mark.parametrize(("name", "method"), [("gelu", "fewbit"), ("gelu", "joint")])
def test_bars_are_as_high_as_the_numbers_of_the_files(name: str, method: str) -> None:
    made = shelf(name, method)
    ((_, _, picture),) = proof_pictures([made])
    for kind, key in (("bar", "error"), ("bar gap", "gap")):
        numbers = np.log10([getattr(fit, key) for fit in (*made.fits, *made.others)])
        tops = np.array([float(top) for top in re.findall(r"V([0-9.]+)H", re.search(PATHS[kind], picture)[1])])
        assert len(tops) == len(BITS[method])
        slope, start = np.polyfit(tops, numbers, 1)
        assert slope < 0  # upwards
        assert np.abs(start + slope * tops - numbers).max() < 0.06 * -slope  # tops are rounded to tenths of a unit


def test_what_is_exact_has_no_picture() -> None:
    assert proof_pictures([shelf("relu", "fewbit")]) == []


def test_a_bar_stands_on_the_bottom() -> None:
    panel = Panel((0.0, 2.0), (0.01, 1.0), 10, 100, logarithmic=True, left=0, right=200)
    panel.bars(np.array([1.0]), np.array([0.1]), 0.5, "bar")
    assert panel.inside == ['<path class="bar" d="M75 110V60H125V110z"/>']
