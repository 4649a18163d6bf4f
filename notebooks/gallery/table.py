"""The table of all fits."""

from collections.abc import Sequence

from notebooks.gallery.fits import Fit, Shelf
from notebooks.gallery.markup import Html, tag
from notebooks.gallery.numbers import DOWN, NEAREST, UP, percent, short

# Column: its name, and what it means, for those who point at it.
COLUMNS = (
    ("Function", None),
    ("Method", None),
    ("For", "bits, or the dtype of the output"),
    ("Error", "few-bit: ∫(f′ − q)²w; InvAct: root of the mean square"),
    ("Least", "few-bit: proven lower bound; InvAct: the floor that the rounded output sets"),
    ("Above least", "the error above the least"),
    ("Paper’s", "the same error in the papers"),
    ("Largest", "the largest error"),
    (
        "|q − g| ≤",
        "InvAct: proven for the formula itself, in exact arithmetic; of |q − g| / max(1, |g|) if g is unbounded",
    ),
    ("Bits", "kept for backward, an element, besides the output where that is used"),
    ("Instr.", "InvAct: instructions an element"),
    ("Version", None),
)
NUMBERED = range(3, len(COLUMNS))  # columns that hold numbers
CLOSE = 4  # digits of numbers that differ by parts of a thousand


def table(shelves: Sequence[Shelf]) -> Html:
    """All fits of all functions, a line each."""
    head = [
        tag("th", name, scope="col", title=meaning, class_="number" if i in NUMBERED else None)
        for i, (name, meaning) in enumerate(COLUMNS)
    ]
    rows = [_row(fit) for shelf in shelves for fit in shelf.fits]
    caption = tag("caption", "All stored fits", class_="unseen")
    return tag("table", caption, tag("thead", tag("tr", *head)), tag("tbody", *rows), id="page-table")


def _row(fit: Fit) -> Html:
    error = fit.document["error"]
    link = tag("a", fit.entry.function, href=f"#{fit.id}")
    printed = fit.printed[0] if fit.printed else None
    paper = float(printed) if printed else fit.paper
    cells = [
        tag("th", link, scope="row", data_value=fit.entry.function),
        tag("td", fit.method, data_value=fit.method),
        tag("td", fit.setting, data_value=f"{not fit.is_fewbit:d} {fit.setting}"),
        _number(fit.error, digits=CLOSE),
        _number(fit.least, digits=CLOSE, rounding=DOWN),
        _number(fit.above, "–" if fit.above is None else percent(fit.above, UP)),
        _number(paper, printed),
        _number(error["linf"]),
        _number(fit.proven, rounding=UP),
        _number(fit.kept_bits),
        _number(fit.instructions),
        _number(fit.entry.version),
    ]
    words = f"{fit.entry.function} {fit.method} {fit.setting} {fit.entry.name}".lower()
    return tag("tr", *cells, data_words=words)


def _number(value: float | None, words: str | None = None, digits: int = 3, rounding: str = NEAREST) -> Html:
    """A cell that sorts by its value and shows a few digits of it."""
    shown = words or short(value, digits, rounding)
    return tag("td", shown, class_="number", data_value="" if value is None else repr(value))
