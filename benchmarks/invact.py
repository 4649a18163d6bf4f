"""python -m benchmarks.invact: the engines against each other and the paper, on its four branches.

Each engine is given the same points of GELU and SiLU, left and right of T, and the same aim, the least largest error
of g; its front is held against the exact g at many other points. Writes rows and a plot under
benchmarks/results/<device>/. Takes some minutes, most of them for symbolic regression.
"""

from benchmarks import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("invact", lambda: parsers.invact(__doc__).parse_args())

import time

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.rows import Row, save, summary
from fitting.activations import get
from fitting.invact.engines import ALL, ENGINES, Settings
from fitting.invact.engines.papers import published
from fitting.invact.engines.problem import problems
from fitting.invact.engines.stretch import stretch_of
from fitting.invact.error_floor import ErrorFloor, information_floor
from fitting.invact.exact import derivative_from_output
from fitting.invact.formula import Candidate
from fitting.invact.judge import rule_for
from fitting.invact.price import improving
from fitting.weights import named

BRANCHES = [(name, branch) for name in ("gelu", "silu") for branch in (0, 1)]
BRANCH_NAMES = ("left", "right")
AIM = 1e-6  # largest error that the engines aim for
REACH, POINTS = 10.0, 20_001  # of x, where formulas are compared with g


def points(error_floor: ErrorFloor, branch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x from T to ±10, its outputs, and g of those."""
    border = error_floor.split.border or 0.0
    x = np.linspace(border, REACH if branch else -REACH, POINTS)
    y = error_floor.split.activation.f(x)
    return x, y, derivative_from_output(error_floor.split.branches[branch], y)


def errors(candidate: Candidate, x: np.ndarray, y: np.ndarray, g: np.ndarray) -> tuple[float, float]:
    """Largest error, and the integral of the squared error over x (trapezoidal rule)."""
    miss = np.abs(candidate(y) - g)
    return float(miss.max()), abs(float(np.trapezoid(miss**2, x)))


def rows_of(
    name: str, branch: int, seconds: float, engine: str, candidates: list[Candidate], error_floor: ErrorFloor
) -> list[Row]:
    at = points(error_floor, branch)
    what, common = f"invact {name} {BRANCH_NAMES[branch]}", {"mode": "front", "dtype": "float64"}
    rows = [Row(what, engine, "front", {}, "float64", "s", **summary([seconds]))] if seconds else []  # type: ignore[arg-type]
    for candidate in candidates:
        largest, squared = errors(candidate, *at)
        size = {"instructions": candidate.price.total, "constants": len(candidate.form.values)}
        for unit, value in (("max |q-g|", largest), ("integral (q-g)^2", squared)):
            rows.append(Row(what, engine, size=size, unit=unit, **common, **summary([value])))  # type: ignore[arg-type]
    return rows


def measure(budget: int) -> list[Row]:
    """All engines on all branches."""
    rows: list[Row] = []
    plan = [(name, branch, engine) for name, branch in BRANCHES for engine in ALL]
    for name, branch, engine in tqdm(plan, unit="search", disable=None):
        error_floor = information_floor(get(name), "float32", named("norm"))
        tasks = problems(stretch_of(error_floor.split, branch), error_floor, rule_for(error_floor, AIM))
        start, made = time.perf_counter(), []
        for variable, problem in tasks:
            forms = ENGINES[engine](problem, Settings(budget=budget if engine == "operon" else None), lambda _: None)
            made += [Candidate(form, variable).rounded() for form in forms]
        rows += rows_of(name, branch, time.perf_counter() - start, engine, made, error_floor)
        theirs = published(name)
        if theirs is not None and engine == ALL[0]:
            rows += rows_of(name, branch, 0.0, "paper", [theirs[branch]], error_floor)
    return rows


def plot(rows: list[Row]) -> Figure:
    """Largest error against instructions for each branch."""
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    for axes, (name, branch) in zip(figure.subplots(2, 2).flat, BRANCHES, strict=True):
        what = f"invact {name} {BRANCH_NAMES[branch]}"
        for i, engine in enumerate((*ALL, "paper")):
            of_engine = [row for row in rows if (row.what, row.implementation, row.unit) == (what, engine, "max |q-g|")]
            ordered = sorted((row.size["instructions"], row.median) for row in of_engine)
            front = improving(ordered, lambda point: point[1])
            marker = "*" if engine == "paper" else "o"
            size = 14 if engine == "paper" else 4
            axes.semilogy(*zip(*front, strict=True), marker=marker, markersize=size, color=f"C{i}", label=engine)
        axes.set_title(f"{name}, {BRANCH_NAMES[branch]} of T")
        axes.set_xlabel("instructions per element")
        axes.set_ylabel("max |q − g|")
        axes.legend(frameon=False, fontsize=8)
    return figure


def main() -> None:
    options = parsers.invact(__doc__).parse_args()
    rows = measure(options.budget)
    path = save(rows, "invact")
    plot(rows).savefig(path.with_name("invact-engines.png"), dpi=150)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
