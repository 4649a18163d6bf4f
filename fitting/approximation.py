"""Approximations of f' as numbers: the value of a table or a formula at each x, and its error.

Stored fits are loaded; tables that are not stored are fitted.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from actfit.fitting.activations import Activation
from actfit.fitting.activations.tape import Array
from actfit.fitting.fewbit.arguments import check_arguments
from actfit.fitting.fewbit.measure import Measure
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.fewbit.steps import Steps
from actfit.fitting.fewbit.table1 import TABLE_1
from actfit.fitting.invact.engines.papers import published
from actfit.fitting.invact.error_floor import ErrorFloor, information_floor
from actfit.fitting.invact.formats import get_format
from actfit.fitting.invact.formula import Candidate
from actfit.fitting.invact.inputs import on_right
from actfit.fitting.invact.judge import Judge
from actfit.fitting.stored_fits import published_formulas, stored_formulas, stored_table
from actfit.fitting.weights import Weight, uniform

POINTS = 4000
CLOSE = 1e-6  # of the domain: the distance of the first points from the border of two branches
GAP = 0.01  # the target gap of tables fitted here; half of them are far closer to the best


@dataclass(frozen=True)
class Approximation:
    """An approximation q of f', at points x."""

    # activation, weight, domain: f, the distribution of x, and the ends of x
    activation: Activation
    label: str  # how q is computed, in words
    bits: int  # saved for each element; if q reads the output, beside it
    weight: Weight
    domain: tuple[float, float]
    # x, q: float64 (n,): increasing points, two of them around each jump, and q there
    x: Array
    q: Array
    error: float  # ∫ (f' - q)² w over the domain. If q reads a stored output, the integral is over all x of its dtype.
    linf: float  # the largest |f' - q| on the domain
    error_floor: ErrorFloor | None = None  # the error floor of the stored output, if q reads it

    @property
    def derivative(self) -> Array:
        """f' at the points."""
        return self.activation.df(self.x)


def few_bits(
    activation: Activation,
    bits: int,
    levels: str = "best",
    weight: Weight | None = None,
    domain: tuple[float, float] | None = None,
) -> Approximation:
    """f' by a table of 2**bits levels. Arguments and errors are those of `fitting.fewbit.solve.fit`."""
    weight = weight or uniform()
    domain = check_arguments(activation, bits, levels, weight, domain)
    steps, error, linf = stored_table(activation, bits, levels, weight, domain) or _made_table(
        activation, bits, levels, weight, domain
    )
    breaks = np.concatenate([steps.borders, activation.breakpoints])
    beside = np.concatenate([np.nextafter(breaks, -np.inf), np.nextafter(breaks, np.inf)])
    x = np.setdiff1d(np.concatenate([np.linspace(*domain, POINTS), beside]), breaks)
    x = x[(domain[0] <= x) & (x <= domain[1])]
    kind = "shared levels" if levels in ("best", "shared") else f"{levels} levels"
    label = f"by {bits} bit{'s' * (bits > 1)}, {kind}"
    return Approximation(activation, label, bits, weight, domain, x, steps(x), error, linf)


def _made_table(
    activation: Activation, bits: int, levels: str, weight: Weight, domain: tuple[float, float]
) -> tuple[Steps, float, float]:
    quick = replace(weight, height=None)  # integrals by quadrature: ball arithmetic would take most of the time
    fitted = fit(activation, bits, levels=levels, weight=quick, domain=domain, target_gap=GAP)
    return fitted.steps, fitted.error.l2_squared, fitted.error.linf


def from_output(
    activation: Activation,
    dtype: str,
    weight: Weight | None = None,
    domain: tuple[float, float] | None = None,
    *,
    paper: bool = False,
) -> Approximation:
    """f' by formulas of the stored output y.

    activation: a function of the catalogue.
    dtype: of y: "bfloat16", "float16" or "float32".
    weight: the distribution of x for the error; uniform by default.
    domain: the ends of x; by default the weight's own.
    paper: whether to take the InvAct paper's formulas, instead of the stored ones for the dtype.
    Raises `InputError` if there are no such formulas, or weight, domain or dtype are not valid.
    """
    weight = weight or uniform()
    domain = check_arguments(activation, 1, "best", weight, domain)
    format_ = get_format(dtype)
    formulas = published_formulas(activation) if paper else stored_formulas(activation, dtype)
    error_floor = information_floor(activation, dtype, replace(weight, domain=domain))
    with np.errstate(all="ignore"):  # formulas are also evaluated where no output is stored
        scores = [Judge(index, error_floor)(formula) for index, formula in enumerate(formulas)]
        x = _numbers(error_floor, domain)
        y, right = format_.round(activation.f(x)), on_right(error_floor.split, x)
        q = np.where(right, formulas[-1].float32(y), formulas[0].float32(y)).astype(np.float64)
    square = error_floor.rms**2 + sum(score.square for score in scores)
    label = f"from y in {dtype}" + ", the paper's formulas" * paper
    error = square * Measure(activation, weight, domain).mass
    linf = _largest(error_floor, formulas, y, right)
    return Approximation(activation, label, len(formulas) - 1, weight, domain, x, q, error, linf, error_floor)


def _largest(error_floor: ErrorFloor, formulas: tuple[Candidate, ...], y: Array, right: NDArray[np.bool_]) -> float:
    """The largest |f' - q| over all x whose stored output lies between the least and the largest y of a branch."""
    largest = 0.0
    for branch_bit, (cells, formula) in enumerate(zip(error_floor.cells, formulas, strict=True)):
        own = y[(right == bool(branch_bit)) & np.isfinite(y)]
        if own.size:
            reached = (own.min() <= cells.y) & (cells.y <= own.max())
            with np.errstate(all="ignore"):  # as in the caller
                total = np.abs(formula.float32(cells.y).astype(np.float64) - cells.middle) + cells.half
            largest = max(largest, float(np.nan_to_num(total[reached], nan=np.inf).max(initial=0.0)))
    return largest


def _numbers(error_floor: ErrorFloor, domain: tuple[float, float]) -> Array:
    """Every number of a 16-bit format in the domain; of float32 a sample that is dense where the branches meet."""
    lo, hi = domain
    if error_floor.format.precision <= 16:
        x = error_floor.format.numbers()
    else:
        border = 0.0 if error_floor.split.border is None else error_floor.split.border
        away = np.geomspace(CLOSE, 1.0, POINTS // 4) * (hi - lo)
        x = error_floor.format.round(np.concatenate([np.linspace(lo, hi, POINTS), border - away, border + away]))
    return np.unique(x[(lo <= x) & (x <= hi)])


@dataclass(frozen=True)
class Comparison:
    """Errors ∫ (f' - q)² dx on [-10, 10] of one function, by bits saved for each element."""

    activation: Activation
    # contiguous, shared: errors of few-bit tables, by bits
    contiguous: dict[int, float]
    shared: dict[int, float]
    # outputs, paper: bits and error of the stored formulas of y, and of the InvAct paper's, by dtype of y
    outputs: dict[str, tuple[int, float]]
    printed: dict[int, float]  # errors in Table 1 of the FewBit paper, by bits; for even f' its tables are of |x|
    paper: dict[str, tuple[int, float]]


def compare(activation: Activation, bits: Iterable[int], dtypes: Iterable[str] = ("bfloat16",)) -> Comparison:
    """The errors of all methods for one function of the catalogue."""
    counts, formats = list(bits), list(dtypes)

    def outputs(paper: bool) -> dict[str, tuple[int, float]]:
        by_dtype = {dtype: from_output(activation, dtype, paper=paper) for dtype in formats}
        return {dtype: (approximation.bits, approximation.error) for dtype, approximation in by_dtype.items()}

    return Comparison(
        activation,
        {count: few_bits(activation, count, "contiguous").error for count in counts},
        {count: few_bits(activation, count, "shared").error for count in counts},
        outputs(paper=False),
        {i: float(text) for i, text in enumerate(TABLE_1.get(activation.name, ()), 1) if i in counts},
        outputs(paper=True) if published(activation.name) else {},
    )
