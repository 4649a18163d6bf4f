"""Bounds that the page calls proven hold as printed; where nothing is proven, the page says so."""

import html
import json
import re
from fractions import Fraction

import numpy as np
import pytest

from actfit.coefficients.document import SEALED, dumps, seal
from actfit.coefficients.store import DATA
from notebooks.gallery.curves import formulas
from notebooks.gallery.fits import Coded, InvAct
from notebooks.gallery.numbers import DOWN, NEAREST, UP, percent, short
from notebooks.gallery.page import page
from notebooks.gallery.shelves import shelves
from notebooks.gallery.table import COLUMNS, table

POWERS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
NAMES = [name for name, _ in COLUMNS]


@pytest.fixture(scope="module")
def all_shelves():
    return shelves()


def value(words: str) -> Fraction:
    """A printed number, exactly, or a share in percent."""
    number, _, unit = words.replace("−", "-").partition("\N{NO-BREAK SPACE}")
    mantissa, power = re.fullmatch("([-0-9.]*?)(?:×?10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?", number).groups()
    scale = Fraction(10) ** int((power or "⁰").translate(POWERS))
    return Fraction(mantissa or 1) * scale / (100 if unit == "%" else 1)


def details(text: str) -> dict[str, dict[str, str]]:
    """By a fit's id: the terms and descriptions of its list."""
    lists = re.findall(r'<section id="([^"]*)" class="panel">.*?<dl>(.*?)</dl>', text, re.DOTALL)
    return {id_: {k: plain(v) for k, v in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", items)} for id_, items in lists}


def plain(markup: str) -> str:
    return html.unescape(re.sub("<[^>]*>", "", markup))


def rows(text: str) -> dict[str, list[str]]:
    """By a fit's id: the cells of its line in the table."""
    body = text.partition("<tbody>")[2]
    lines = re.findall(r"<tr.*?</tr>", body)
    return {
        re.search(r'href="#([^"]*)"', line)[1]: [plain(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", line)]
        for line in lines
    }


def above(error: float, least: float) -> Fraction:
    """How far the error is above the least, relative to that, exactly."""
    return Fraction(error) / Fraction(least) - 1


def test_bounds_in_the_table_hold_as_printed(all_shelves):
    cells = rows(table(all_shelves))
    least, share, bound = (NAMES.index(name) for name in ("Least", "Above least", "|q − g| ≤"))
    fits = [fit for shelf in all_shelves for fit in shelf.fits]
    assert {fit.id for fit in fits} == cells.keys()
    for fit in fits:
        line, error = cells[fit.id], fit.document["error"]
        assert value(line[least]) <= Fraction(fit.least), fit.id
        if fit.least and not line[share].startswith("> "):
            assert value(line[share]) >= above(fit.error, fit.least), fit.id
        if isinstance(fit, Coded):
            assert value(line[share]) >= Fraction(error["gap"]), fit.id
        else:
            assert value(line[bound]) >= max(map(Fraction, error["bound"])), fit.id


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
    """A function that stores a changed packaged file, and returns its page and the details on its card."""

    def make(name, change=lambda document: None, function="gelu", now=None):
        path = tmp_path / "data" / function / f"{now or name}.v1.json"  # a file's name must match its content
        path.parent.mkdir(parents=True, exist_ok=True)
        document = json.loads((DATA / function / f"{name}.v1.json").read_text(encoding="utf-8"))
        change(document)
        for key in SEALED:
            del document[key]
        path.write_text(dumps(seal(document, 1)), encoding="utf-8")
        text = page(tmp_path / "data")
        return text, details(text)[f"{function}-{now or name}.v1"]

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

    text, said = changed("invact-float16", forget, "silu")  # whose numbers are rounded to the other side by nearest
    assert said["|q − g| at most"] == words
    assert [re.search("floor ([^,]*)", said[key])[1] for key in ("RMS error", "largest")] == ["0.000312", "0.00376"]
    assert ("dashed: proven bound" in text) == (len(none) < 2)
    assert rows(text)["silu-invact-float16.v1"][NAMES.index("|q − g| ≤")] == ("–" if none else "0.00398")


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

    _, said = changed("fewbit-3bit", weaken)
    assert said["at least"].replace("\N{NO-BREAK SPACE}", " ").endswith(words)
    assert bound is not None or said["at least"].startswith("0.008093 ")  # to nearest it would be more
