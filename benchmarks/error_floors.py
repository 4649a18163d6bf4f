"""python -m benchmarks.error_floors: how far closed forms lie above the error floor in bfloat16 and float16.

And how little any smooth formula would gain: the best polynomial of degree 8 is added to each. Nothing is timed. Writes
rows under benchmarks/results/<device>/error-floors.jsonl; median: the part by which the root mean square error exceeds
the floor. Seconds.
"""

from benchmarks import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("error_floors", lambda: parsers.plain("error_floors", __doc__).parse_args())

import math

import numpy as np

from benchmarks.error_floors_page import CORRECTED, DEGREE, DTYPES, NAME, SHIPPED
from benchmarks.rows import Row, save, summary
from coefficients import load
from fitting.activations import get, names
from fitting.invact.document import candidate_of
from fitting.invact.engines.adapted import CLOSED_FORMS
from fitting.invact.error_floor import Cells, information_floor
from fitting.invact.formula import Candidate
from fitting.weights import named

NEGLIGIBLE = 2.0**-24  # a floor below float32's own rounding says that nearly every x has a y of its own


def measure() -> list[Row]:
    """The rows of all shipped closed forms."""
    rows = []
    for name in names():
        for dtype in DTYPES:
            for way, share in zip((SHIPPED, CORRECTED), shares(name, dtype), strict=False):
                rows.append(Row(name, way, NAME, {}, dtype, "part of the floor", **summary([share])))  # type: ignore[arg-type]
    return rows


def shares(name: str, dtype: str) -> tuple[float, ...]:
    """The parts of the floor by which a shipped closed form exceeds it, alone and corrected.

    Empty without a closed form, or where the floor is negligible.
    """
    document = load(name, f"invact-{dtype}")
    branches, floor_rms = document["solution"]["branches"], document["error"]["floor_rms"]
    if any(branch["engine"] not in CLOSED_FORMS for branch in branches) or floor_rms < NEGLIGIBLE:
        return ()
    cells = information_floor(get(name), dtype, named("norm")).cells
    squares = [excess(of_branch, candidate_of(branch)) for of_branch, branch in zip(cells, branches, strict=True)]
    return tuple(math.sqrt(1.0 + sum(column) / floor_rms**2) - 1.0 for column in zip(*squares, strict=True))


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


def main() -> None:
    parsers.plain("error_floors", __doc__).parse_args()
    print(f"wrote {save(measure(), NAME)}")


if __name__ == "__main__":
    main()
