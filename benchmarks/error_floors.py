"""How far closed forms lie above the error floor in 16-bit formats, and how little any smooth formula would gain."""

import math
from functools import cache

import numpy as np

from benchmarks.pages import table
from coefficients import load
from fitting.activations import get, names
from fitting.invact.document import candidate_of
from fitting.invact.engines.adapted import CLOSED_FORMS
from fitting.invact.error_floor import Cells, information_floor
from fitting.invact.formula import Candidate
from fitting.weights import named

DTYPES = ("bfloat16", "float16")
DEGREE = 8  # of the polynomial that is added: more constants than any closed form has
NEGLIGIBLE = 2.0**-24  # a floor below float32's own rounding says that nearly every x has a y of its own
LEAST = 0.01  # above the floor


@cache
def floors_section() -> str:
    """RMS errors above the floor of closed forms that miss it by more than 1 %, as shipped and with a polynomial."""
    lines = []
    for name in names():
        shares = [_shares(name, dtype) for dtype in DTYPES]
        if any(share is not None and share[0] > LEAST for share in shares):
            lines.append([name, *(cell for share in shares for cell in _cells(share))])
    head = ["", *(text for dtype in DTYPES for text in (dtype, f"with a polynomial of degree {DEGREE}"))]
    return "\n".join(table(head, lines)) + "\n"


def _cells(share: tuple[float, float] | None) -> list[str]:
    return ["–", "–"] if share is None else [f"{100 * part:.1f} %" for part in share]


def _shares(name: str, dtype: str) -> tuple[float, float] | None:
    """The parts of the floor by which a shipped closed form exceeds it, alone and corrected.

    None without a closed form, or where the floor is negligible.
    """
    document = load(name, f"invact-{dtype}")
    branches, floor_rms = document["solution"]["branches"], document["error"]["floor_rms"]
    if any(branch["engine"] not in CLOSED_FORMS for branch in branches) or floor_rms < NEGLIGIBLE:
        return None
    cells = information_floor(get(name), dtype, named("norm")).cells
    squares = [excess(of_branch, candidate_of(branch)) for of_branch, branch in zip(cells, branches, strict=True)]
    alone, corrected = (math.sqrt(1.0 + sum(column) / floor_rms**2) - 1.0 for column in zip(*squares, strict=True))
    return alone, corrected


def excess(cells: Cells, candidate: Candidate) -> tuple[float, float]:
    """The mean square of q - E[f' | y] on a branch, and what is left of it with the best polynomial added to q.

    The polynomial is one of the rank of y, how often an output is below it: it bends most where most outputs are.
    """
    used = cells.mass > 0
    mass, error = cells.mass[used], (candidate.float32(cells.y).astype(np.float64) - cells.mean)[used]
    if not mass.size:
        return 0.0, 0.0
    rank = np.cumsum(mass) / mass.sum()
    root = np.sqrt(mass)
    basis = root[:, None] * np.polynomial.legendre.legvander(2.0 * rank - 1.0, DEGREE)
    fitted = basis @ np.linalg.lstsq(basis, root * error, rcond=None)[0]
    return float(mass @ error**2), float(np.sum((root * error - fitted) ** 2))
