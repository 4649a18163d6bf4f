"""The page: a single file that loads nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path

from markupsafe import Markup

from actfit.coefficients.command import Misuse
from notebooks.gallery.cards import card
from notebooks.gallery.curves import window
from notebooks.gallery.fits import MOST_BITS
from notebooks.gallery.markup import HERE, render
from notebooks.gallery.pictures import thumbnail
from notebooks.gallery.proofs import proof_pictures
from notebooks.gallery.shelves import Shelf, shelves
from notebooks.gallery.table import table

NOTEBOOKS = {
    "error_curves": "Error curves",
    "bits_against_error": "Bits against error",
    "joint_codes": "One code for f′ and f",
    "fitting_slopes": "How slopes are fitted",
    "memory": "Memory of a model",
    "budget": "A model within a budget",
}


def page(
    root: Path | None = None, beside: Path | None = None, progress: Callable[[str], None] = lambda name: None
) -> str:
    """The text of the page for the coefficient files below root (default: the packaged ones).

    beside: the folder of the page; notebooks rendered there are linked. progress: called with each function's name.
    Raises `Misuse` where there are no files, `CoefficientError` or `InputError` for one that is not valid.
    """
    shown, cards = [], []
    for shelf in shelves(root):
        progress(shelf.title)
        shown.append(shelf)
        cards.append(card(shelf))
    if not shown:
        raise Misuse(f"no coefficient files in {root} that the page shows; actfit fewbit --all makes them")
    return render(
        "page.html",
        style=_file("style.css") + _panel_rules(max(len(shelf.fits) for shelf in shown)),
        script=_file("gallery.js"),
        shelves=shown,
        fits=sum(len(shelf.fits) for shelf in shown),
        drawn=_drawn(shown),
        thumbnails=[thumbnail(shelf, window(shelf.fits)) for shelf in shown],
        notebooks=_notebooks(beside),
        most_bits=MOST_BITS,
        cards=cards,
        proofs=proof_pictures(shown),
        table=table(shown),
    )


def _file(name: str) -> Markup:
    """The text of a file of this folder, to insert into the page unchanged."""
    return Markup((HERE / name).read_text(encoding="utf-8"))


def _panel_rules(most: int) -> Markup:
    """The CSS rules that show the selected fit of a card."""
    selectors = (f".card:has([value='{i}']:checked) .panel:nth-child({i + 1})" for i in range(most))
    return Markup(",\n".join(selectors) + " { display: block; }\n")


def _drawn(shown: Sequence[Shelf]) -> str:
    """A sentence on what the small pictures show."""
    tables = sum(shelf.two_bits is not None for shelf in shown)
    if not tables:
        return "f′ of each function."
    where = ", where there is one" * (tables < len(shown))
    return f"f′ of each function, and its stored table of 2 bits an element{where}."


def _notebooks(beside: Path | None) -> dict[str, str]:
    """Names and titles of the notebooks that were rendered next to the page."""
    folder = None if beside is None else beside / "notebooks"
    return {name: title for name, title in NOTEBOOKS.items() if folder and (folder / f"{name}.html").is_file()}
