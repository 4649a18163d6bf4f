"""Bounds that the page calls proven hold as printed; where nothing is proven, the page says so."""

import json
import re
from fractions import Fraction

import numpy as np
import pytest

from actfit.coefficients.document import SEALED, dumps, seal
from actfit.coefficients.store import DATA
from notebooks.gallery.cards import card, details
from notebooks.gallery.curves import formulas
from notebooks.gallery.fits import Coded, Fit, InvAct
from notebooks.gallery.numbers import DOWN, NEAREST, UP, percent, short
from notebooks.gallery.shelves import shelves
from notebooks.gallery.table import COLUMNS, WORDS, numbers

POWERS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


@pytest.fixture(scope="module")
def all_shelves():
    return shelves()


def value(words: str) -> Fraction:
    """A printed number, exactly, or a share in percent."""
    number, _, unit = words.replace("−", "-").partition("\N{NO-BREAK SPACE}")
    mantissa, power = re.fullmatch("([-0-9.]*?)(?:×?10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?", number).groups()
    scale = Fraction(10) ** int((power or "⁰").translate(POWERS))
    return Fraction(mantissa or 1) * scale / (100 if unit == "%" else 1)


def cells(fit: Fit) -> dict[str, str]:
    """The words of a fit's numbers in the table, by column."""
    return {name: words for (name, _), (_, words) in zip(COLUMNS[WORDS:], numbers(fit), strict=True)}


def above(error: float, least: float) -> Fraction:
    """How far the error is above the least, relative to that, exactly."""
    return Fraction(error) / Fraction(least) - 1


def test_bounds_in_the_table_hold_as_printed(all_shelves):
    for fit in (fit for shelf in all_shelves for fit in shelf.fits):
        line, error = cells(fit), fit.document["error"]
        assert value(line["Least"]) <= Fraction(fit.least), fit.id
        if fit.least and not line["Above least"].startswith("> "):
            assert value(line["Above least"]) >= above(fit.error, fit.least), fit.id
        if isinstance(fit, Coded):
            assert value(line["Above least"]) >= Fraction(error["gap"]), fit.id
        else:
            assert value(line["|q − g| ≤"]) >= max(map(Fraction, error["bound"])), fit.id


@pytest.mark.slow
def test_what_is_drawn_is_below_what_is_proven(all_shelves):
    drawn = 0
    for fit in (fit for shelf in all_shelves for fit in shelf.fits if isinstance(fit, InvAct)):
        for side in formulas(fit, -3.0, 3.0):
            scale = np.maximum(1.0, np.abs(side.g).max())  # errors are computed in float64, from numbers of that size
            assert np.nanmax(side.error) <= side.bound + 8 * np.finfo(float).eps * scale
            drawn += 1
    assert drawn > 72


@pytest.mark.parametrize(
    ("number", "digits", "down", "nearest", "up"),
    [
        (0.162095, 4, "0.162", "0.1621", "0.1621"),
        (1.0631e-2, 3, "0.0106", "0.0106", "0.0107"),
        (4.6e-7, 2, "4.5×10⁻⁷", "4.6×10⁻⁷", "4.6×10⁻⁷"),  # the float64 next to it is less
        (9.996e-6, 3, "9.99×10⁻⁶", "10⁻⁵", "10⁻⁵"),
        (-1.25, 2, "−1.3", "−1.2", "−1.2"),
        (0.0, 3, "0", "0", "0"),
        (0.5, 3, "0.5", "0.5", "0.5"),
    ],
)
def test_numbers_are_rounded_to_the_side_asked_for(number, digits, down, nearest, up):
    assert [short(number, digits, side) for side in (DOWN, NEAREST, UP)] == [down, nearest, up]


def test_shares_are_rounded_to_the_side_asked_for():
    shares = (0.00039201, 0.9901, 1.001, 2.0, 9.999)
    said = [[percent(share, side).replace("\N{NO-BREAK SPACE}", " ") for share in shares] for side in (NEAREST, UP)]
    assert said == [["0.039 %", "99 %", "100 %", "200 %", "1000 %"], ["0.04 %", "100 %", "101 %", "200 %", "1000 %"]]


# other files


@pytest.fixture
def changed(tmp_path):
    """A function that stores a changed packaged file, and returns its card, its details there and its line."""

    def make(name, change, function="gelu"):
        path = tmp_path / "data" / function / f"{name}.v1.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        document = json.loads((DATA / function / f"{name}.v1.json").read_text(encoding="utf-8"))
        change(document)
        for key in SEALED:
            del document[key]
        path.write_text(dumps(seal(document, 1)), encoding="utf-8")
        (shelf,) = shelves(tmp_path / "data")
        return card(shelf), dict(details(shelf.fits[0])), cells(shelf.fits[0])

    return make


@pytest.mark.parametrize(
    ("none", "words"),
    [
        ((0, 1), "no bound found"),
        ((0,), "left: no bound found; right: 0.00398, proven"),
        ((1,), "left: 0.00299, proven; right: no bound found"),
        ((), "0.00299, 0.00398, proven"),
    ],
)
def test_no_bound_is_not_called_proven(changed, none, words):
    def forget(document):
        for i in none:
            document["error"]["bound"][i] = None

    text, said, line = changed(
        "invact-float16", forget, "silu"
    )  # whose numbers are rounded to the other side by nearest
    assert said["|q − g| at most"] == words
    assert [re.search("floor ([^,]*)", said[key])[1] for key in ("RMS error", "largest")] == ["0.000312", "0.00376"]
    assert ("dashed: proven bound" in text) == (len(none) < 2)
    assert line["|q − g| ≤"] == ("–" if none else "0.00398")


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (0.0, "no bound above 0 found"),
        (0.0001, "> 1000 % above that"),
        (0.00404, "at most 101 % above"),
        (None, "the least"),
    ],
)
def test_weak_bounds_are_told_as_they_are(changed, bound, words):
    def weaken(document):
        error = document["error"]
        error["lower_bound"] = error["l2_squared"] if bound is None else bound
        error["gap"] = (error["l2_squared"] - error["lower_bound"]) / error["l2_squared"]

    _, said, _ = changed("fewbit-3bit", weaken)
    assert said["at least"].replace("\N{NO-BREAK SPACE}", " ").endswith(words)
    assert bound is not None or said["at least"].startswith("0.008093 ")  # to nearest it would be more
