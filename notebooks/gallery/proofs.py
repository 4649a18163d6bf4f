"""How small the errors of tables and joint codes are, and how near to their proven bounds: bars, by bits."""

from collections.abc import Iterable, Sequence

import numpy as np
from markupsafe import Markup

from notebooks.gallery.fits import Coded, FewBit, Fit, Joint
from notebooks.gallery.numbers import UP, short
from notebooks.gallery.shelves import Shelf
from notebooks.gallery.svg import Panel, picture

BITS = (0.4, 8.6)  # the range of the axis
WIDTH = 0.7  # of a bar
GOALS: dict[type[Coded], tuple[float, float]] = {FewBit: (1e-5, 1e-4), Joint: (1e-3, 1e-3)}  # with few bits, with more
FEW = 4  # bits


def proof_pictures(shelves: Sequence[Shelf]) -> list[tuple[Shelf, str, Markup]]:
    """Shelf, kind of fits and picture, of all whose errors are not 0; first of all tables, then of all joint codes."""
    return [
        (shelf, kind.group, _picture(shelf, fits, kind))
        for kind in GOALS
        for shelf in shelves
        if (fits := _by_bits((*shelf.fits, *shelf.others), kind))
    ]


def _by_bits(fits: Iterable[Fit], kind: type[Coded]) -> dict[int, Coded]:
    """The newest fits of a kind with the usual options, by bits; those without error are left out."""
    usual = [fit for fit in fits if isinstance(fit, kind) and not fit.manner and fit.error and fit.above]
    return {fit.kept_bits: fit for fit in sorted(usual, key=lambda fit: (fit.kept_bits, fit.entry.version))}


def _picture(shelf: Shelf, fits: dict[int, Coded], kind: type[Coded]) -> Markup:
    bits, goals = np.array([*fits]), GOALS[kind]
    errors, gaps = (np.array([getattr(fit, key) for fit in fits.values()]) for key in ("error", "gap"))
    above = Panel(BITS, _decades(errors), 18, 70, logarithmic=True)
    above.bars(bits, errors, WIDTH, "bar")
    below = Panel(BITS, _decades(np.append(gaps, goals)), 118, 70, logarithmic=True)
    below.bars(bits, gaps, WIDTH, "bar gap")
    for ends, goal in zip(((BITS[0], FEW + 0.5), (FEW + 0.5, BITS[1])), goals, strict=True):
        below.curve(np.array(ends), np.full(2, goal), "curve bound")
    words = f"{shelf.title}, {kind.method}: errors, and gaps of at most {short(gaps.max(), 2, UP)}"
    panels = (
        above.drawn("bits", "error", labelled=False, upright=False),
        below.drawn("bits", "gap, in parts of the error", upright=False),
    )
    return picture(words, f"{shelf.id}-{kind.method}-proof", 220, *panels)


def _decades(values: np.ndarray) -> tuple[float, float]:
    """Powers of ten around the values, with room below the least."""
    lo, hi = np.floor(np.log10(values.min()) - 0.3), np.ceil(np.log10(values.max()))
    return float(10.0**lo), float(10.0 ** max(hi, lo + 1))
