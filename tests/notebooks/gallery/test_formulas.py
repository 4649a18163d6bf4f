"""The comments in the texts to copy: which interval has which level, and where a formula holds."""

import re

import numpy as np
import pytest

from actfit.fitting.fewbit.steps import Steps
from actfit.fitting.invact.document import candidate_of
from notebooks.gallery.c_array import as_c
from notebooks.gallery.fits import FewBit, InvAct
from notebooks.gallery.latex import _maths
from notebooks.gallery.shelves import shelves
from tests.notebooks.gallery.test_texts import arrays

FITS = [fit for shelf in shelves() for fit in shelf.fits]
FEW_BITS = [fit for fit in FITS if isinstance(fit, FewBit) and fit.document["solution"]["borders"]]
FORMULAS = [fit for fit in FITS if isinstance(fit, InvAct)]


def test_c_says_which_interval_a_border_is_in():
    for fit in FEW_BITS:
        text, solution = as_c(fit), fit.document["solution"]
        assert "q(x) = levels[codes[i]] for borders[i - 1] < x <= borders[i];" in text
        numbers_of = {name.rsplit("bit", 1)[1]: numbers for name, (_, numbers) in arrays(text).items()}
        borders, codes, levels = (np.array(numbers_of[key], dtype=float) for key in ("_borders", "_codes", "_levels"))
        x = np.concatenate([borders, np.nextafter(borders, -np.inf), np.nextafter(borders, np.inf)])
        q = levels[codes.astype(int)[np.searchsorted(borders, x, side="left")]]  # as the text says
        assert np.array_equal(q, Steps(*(np.array(solution[key]) for key in ("borders", "codes", "levels")))(x))
        assert_same_intervals(numbers_of["_borders_f"], borders)


def assert_same_intervals(texts: list[str], borders: np.ndarray) -> None:
    """Assert that the float borders put float32 numbers into the same intervals, even next to borders."""
    singles = np.array([text[:-1] for text in texts], dtype=np.float32)
    near = np.concatenate(
        [singles, np.nextafter(singles, np.float32(-np.inf)), np.nextafter(singles, np.float32(np.inf))]
    )
    assert np.array_equal(np.searchsorted(singles, near, side="left"), np.searchsorted(borders, near, side="left"))


def test_c_formulas_with_the_arrays_are_those_of_the_file():
    for fit in FORMULAS:
        text = as_c(fit)
        head = text.split("*/")[0]
        named = re.findall(
            r"^/\* (\w+(?:, \w+)*) \*/\nstatic const double \w+\[\d+\] = \{\n(.*?)\n\};", text, re.M | re.S
        )
        given = [dict(zip(names.split(", "), map(float, numbers.split(",")), strict=True)) for names, numbers in named]
        q = re.findall(r"^ \* +q = (.*)$", head, re.MULTILINE)
        s = re.findall(r"^ \* +s = (.*)$", head, re.MULTILINE)
        branches = fit.document["solution"]["branches"]
        assert len(q) == len(branches)
        y = np.linspace(-3, 3, 101)
        for branch, expression in zip(branches, q, strict=True):
            copied = {
                **branch,
                "variable": s.pop(0) if branch["variable"] is not None else None,
                "expression": expression,
                "constants": given.pop(0) if branch["constants"] else {},
            }
            with np.errstate(all="ignore"):  # some y are no outputs
                read, stored = candidate_of(copied)(y), candidate_of(branch)(y)
            assert np.array_equal(read, stored, equal_nan=True), fit.place
        assert s == given == []


@pytest.mark.parametrize(
    ("text", "maths"),
    [
        ("min(abs(y), high)", r"\min\left(\left|{y}\right|, \mathrm{high}\right)"),
        ("expm1(c0*y)", r"\operatorname{expm1}\left(c_{0} y\right)"),
        ("exp(-y)/c10", r"\frac{e^{- y}}{c_{10}}"),
        (
            "Piecewise((y, y > c0), (s, True))",
            r"\begin{cases} y & \text{for}\: c_{0} < y \\s & \text{otherwise} \end{cases}",
        ),
    ],
)
def test_maths(text, maths):
    assert _maths(text, dict.fromkeys(("t", "low", "high", "c0", "c10"), 1.0)) == maths
