"""The table of all fits."""

from collections.abc import Sequence

from markupsafe import Markup

from notebooks.gallery.fits import Fit
from notebooks.gallery.markup import render
from notebooks.gallery.numbers import DOWN, NEAREST, UP, percent, short
from notebooks.gallery.shelves import Shelf

# Columns: name, and meaning, shown as a tooltip.
COLUMNS = (
    ("Function", None),
    ("Method", None),
    ("For", "bits, or the dtype of the output"),
    ("Error", "few-bit: ∫(f′ − q)²w; joint: ∫(f′ − q)²w + λ∫(f − y)²w; InvAct: root of the mean square"),
    ("Least", "few-bit and joint: proven lower bound; InvAct: the floor that the rounded output sets"),
    ("Above least", "the error above the least"),
    ("Paper’s", "the same error in the papers"),
    ("Of f′", "joint: root of the mean square error of f′, in parts of that of f′"),
    ("Of f", "joint: root of the mean square error of f, in parts of that of f"),
    ("Largest", "the largest error of f′"),
    (
        "|q − g| ≤",
        "InvAct: proven for the formula itself, in exact arithmetic; of |q − g| / max(1, |g|) if g is unbounded",
    ),
    ("Bits", "kept for backward, an element, besides the output where that is used"),
    ("Instr.", "InvAct: instructions an element"),
    ("Version", None),
)
WORDS = 3  # the first columns, which hold words; the style sheet aligns the others on the right
CLOSE = 4  # digits of numbers that differ by thousandths


def table(shelves: Sequence[Shelf]) -> Markup:
    """The table of all fits, a line for each."""
    rows = [(fit, numbers(fit)) for shelf in shelves for fit in shelf.fits]
    return render("table.html", columns=COLUMNS, words_columns=WORDS, rows=rows)


def numbers(fit: Fit) -> list[tuple[str, str]]:
    """The cells of the columns of numbers: the value to sort by, and its text."""
    printed = fit.printed[0] if fit.printed else None
    return [
        _cell(fit.error, digits=CLOSE),
        _cell(fit.least, digits=CLOSE, rounding=DOWN),
        _cell(fit.above, "–" if fit.above is None else percent(fit.above, UP)),
        _cell(float(printed) if printed else fit.paper, printed),
        *map(_cell, fit.shares),
        _cell(fit.largest),
        _cell(fit.proven, rounding=UP),
        _cell(fit.kept_bits),
        _cell(fit.instructions),
        _cell(fit.entry.version),
    ]


def _cell(value: float | None, words: str | None = None, digits: int = 3, rounding: str = NEAREST) -> tuple[str, str]:
    return "" if value is None else repr(value), words or short(value, digits, rounding)
