"""The page: one file that loads nothing, with all that belongs to it inside."""

from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template

from coefficients.command import Misuse
from notebooks.gallery.cards import card
from notebooks.gallery.curves import window
from notebooks.gallery.fits import Shelf, shelves
from notebooks.gallery.markup import Html, join, tag
from notebooks.gallery.pictures import thumbnail
from notebooks.gallery.table import table

HERE = Path(__file__).parent
NOTEBOOKS = {
    "error_curves": "Error curves",
    "bits_against_error": "Bits against error",
    "fitting_slopes": "How slopes are fitted",
    "memory": "Memory of a model",
}


def page(
    root: Path | None = None, beside: Path | None = None, progress: Callable[[str], None] = lambda name: None
) -> str:
    """The text of the page for the coefficient files below root (default: the packaged ones).

    beside: the folder it will stand in; notebooks rendered there are linked. progress is told each function's name.
    Raises `Misuse` where there are no files, `CoefficientError` or `InputError` for one that is not valid.
    """
    found, cards = [], []
    for shelf in shelves(root):
        progress(shelf.title)
        found.append(shelf)
        cards.append(card(shelf))
    if not found:
        raise Misuse(f"no coefficient files in {root}; python -m fitting.fewbit --all makes them")
    template = Template((HERE / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        style=(HERE / "style.css").read_text(encoding="utf-8") + _choices(max(len(shelf.fits) for shelf in found)),
        script=(HERE / "gallery.js").read_text(encoding="utf-8"),
        functions=str(len(found)),
        fits=str(sum(len(shelf.fits) for shelf in found)),
        jumps=Html("".join(tag("a", shelf.title, href=f"#{shelf.id}") for shelf in found)),
        drawn=_drawn(found),
        index=Html("".join(tag("li", _entry(shelf)) for shelf in found)),
        notebooks=_notebooks(beside),
        cards=join(cards, "\n"),
        table=table(found),
    )


def _choices(most: int) -> str:
    """The rules that show the fit chosen on a card."""
    chosen = (f".card:has([value='{i}']:checked) .panel:nth-child({i + 1})" for i in range(most))
    return ",\n".join(chosen) + " { display: block; }\n"


def _entry(shelf: Shelf) -> Html:
    """A small picture that leads to a card."""
    return tag("a", thumbnail(shelf, window(shelf.fits)), tag("span", shelf.title), href=f"#{shelf.id}")


def _drawn(found: Sequence[Shelf]) -> str:
    """What the small pictures show."""
    tables = sum(shelf.two_bits is not None for shelf in found)
    if not tables:
        return "f′ of each function."
    where = ", where there is one" * (tables < len(found))
    return f"f′ of each function, and its stored table of 2 bits an element{where}."


def _notebooks(beside: Path | None) -> Html:
    """Links to the notebooks that were rendered next to the page."""
    links = [
        tag("a", title, href=f"notebooks/{name}.html")
        for name, title in NOTEBOOKS.items()
        if beside is not None and (beside / "notebooks" / f"{name}.html").is_file()
    ]
    return tag("p", "Notebooks: ", join(links, ", "), ".", class_="notebooks") if links else Html()
