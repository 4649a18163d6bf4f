"""Any approximation of f' by numbers: what a table or a formula gives for each x, and how far that is from f'.

Stored fits are taken where there are some, others are made.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coefficients import load
from coefficients.store import available
from fitting.activations import Activation, get, names
from fitting.activations.tape import Array
from fitting.errors import InputError
from fitting.fewbit.measure import Measure
from fitting.fewbit.solve import check_arguments, fit
from fitting.fewbit.steps import Steps
from fitting.fewbit.table1 import TABLE_1
from fitting.invact.document import candidate_of
from fitting.invact.engines.papers import ENGINE, published
from fitting.invact.error_floor import ErrorFloor, information_floor, on_right
from fitting.invact.formats import get_format
from fitting.invact.formula import Candidate
from fitting.invact.judge import Judge
from fitting.weights import Weight, uniform

POINTS = 4000
CLOSE = 1e-6  # of the domain: how near to the border of two sides points begin
GAP = 0.01  # to the bound, of tables made for a look: half of them are the best to many digits all the same


@dataclass(frozen=True)
class Approximation:
    """q in place of f' at points x: sorted, and on both sides of every jump.

    bits: kept for each element, beside the output where the method reads that. error: ∫ (f' - q)² w over the domain;
    where the method reads a stored output, x is taken to be of its dtype too. linf: the largest |f' - q| on the domain.
    floor: of the output as it is stored, where the method reads that.
    """

    activation: Activation
    label: str
    bits: int
    weight: Weight
    domain: tuple[float, float]
    x: Array
    q: Array
    error: float
    linf: float
    error_floor: ErrorFloor | None = None

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
    """By a table of 2**bits levels, as `fitting.fewbit.solve.fit` makes it. Raises `InputError` as that does."""
    weight = weight or uniform()
    domain = check_arguments(activation, bits, levels, weight, domain)
    steps, error, linf = _stored_table(activation, bits, levels, weight, domain) or _made_table(
        activation, bits, levels, weight, domain
    )
    breaks = np.concatenate([steps.borders, activation.breakpoints])
    sides = np.concatenate([np.nextafter(breaks, -np.inf), np.nextafter(breaks, np.inf)])
    x = np.setdiff1d(np.concatenate([np.linspace(*domain, POINTS), sides]), breaks)
    x = x[(domain[0] <= x) & (x <= domain[1])]
    kind = "shared levels" if levels in ("best", "shared") else f"{levels} levels"
    label = f"by {bits} bit{'s' * (bits > 1)}, {kind}"
    return Approximation(activation, label, bits, weight, domain, x, steps(x), error, linf)


def _stored_table(
    activation: Activation, bits: int, levels: str, weight: Weight, domain: tuple[float, float]
) -> tuple[Steps, float, float] | None:
    """The shipped table that was asked for so, and its errors: the integral and the largest."""
    usual = uniform()
    asked = (levels in ("best", "shared"), weight.label, domain)
    name = f"fewbit-{bits}bit"
    if asked != (True, usual.label, usual.domain) or name not in _names(activation):
        return None
    document = load(activation.name, name)
    steps = Steps(*(np.array(document["solution"][key]) for key in ("borders", "codes", "levels")))
    return steps, float(document["error"]["l2_squared"]), float(document["error"]["linf"])


def _catalogued(activation: Activation) -> bool:
    """Whether it is the catalogue's function of its name, and not another or that with parameters of its own."""
    return activation.name in names() and activation.f_expression == get(activation.name).f_expression


def _names(activation: Activation) -> set[str]:
    """Of the stored fits of this very function."""
    if not _catalogued(activation):
        return set()
    return {entry.name for entry in available() if entry.function == activation.name}


def _made_table(
    activation: Activation, bits: int, levels: str, weight: Weight, domain: tuple[float, float]
) -> tuple[Steps, float, float]:
    quick = replace(weight, height=None)  # integrals by quadrature: ball arithmetic would take most of the time
    made = fit(activation, bits, levels=levels, weight=quick, domain=domain, target_gap=GAP)
    return made.steps, made.error.l2_squared, made.error.linf


def from_output(
    activation: Activation,
    dtype: str,
    weight: Weight | None = None,
    domain: tuple[float, float] | None = None,
    *,
    paper: bool = False,
) -> Approximation:
    """By the stored formulas of y, rounded to `dtype`, or the InvAct paper's: they do not depend on weight and domain.

    Raises `InputError` where there are no such formulas, and for a weight, domain or dtype that cannot be.
    """
    weight = weight or uniform()
    domain = check_arguments(activation, 1, "best", weight, domain)
    form = get_format(dtype)
    formulas = _published(activation) if paper else _stored_formulas(activation, dtype)
    error_floor = information_floor(activation, dtype, replace(weight, domain=domain))
    with np.errstate(all="ignore"):  # formulas are looked at where nothing is stored, too
        scores = [Judge(index, error_floor)(formula) for index, formula in enumerate(formulas)]
        x = _numbers(error_floor, domain)
        y, right = form.round(activation.f(x)), on_right(error_floor.split, x)
        q = np.where(right, formulas[-1].float32(y), formulas[0].float32(y)).astype(np.float64)
    square = error_floor.rms**2 + sum(score.square for score in scores)
    label = f"from y in {dtype}" + ", the paper's formulas" * paper
    error = square * Measure(activation, weight, domain).mass
    linf = _largest(error_floor, formulas, y, right)
    return Approximation(activation, label, len(formulas) - 1, weight, domain, x, q, error, linf, error_floor)


def _largest(error_floor: ErrorFloor, formulas: tuple[Candidate, ...], y: Array, right: NDArray[np.bool_]) -> float:
    """The largest |f' - q| of all x that are stored as outputs from the least to the greatest y of each side."""
    found = 0.0
    for branch_bit, (cells, formula) in enumerate(zip(error_floor.cells, formulas, strict=True)):
        own = y[(right == bool(branch_bit)) & np.isfinite(y)]
        if own.size:
            reached = (own.min() <= cells.y) & (cells.y <= own.max())
            with np.errstate(all="ignore"):  # as in the caller
                total = np.abs(formula.float32(cells.y).astype(np.float64) - cells.middle) + cells.half
            found = max(found, float(np.nan_to_num(total[reached], nan=np.inf).max(initial=0.0)))
    return found


def _published(activation: Activation) -> tuple[Candidate, ...]:
    found = published(activation.name) if _catalogued(activation) else None
    if found is None:
        raise InputError(f"engine {ENGINE} has formulas for gelu and silu, got {activation.name}")
    return found


def _stored_formulas(activation: Activation, dtype: str) -> tuple[Candidate, ...]:
    name = f"invact-{dtype}"
    if name not in _names(activation):
        raise InputError(
            f"formulas of the output are stored for the catalogue's functions as they are, got {activation.name}; "
            "python -m fitting.invact fits others"
        )
    return tuple(map(candidate_of, load(activation.name, name)["solution"]["branches"]))


def _numbers(error_floor: ErrorFloor, domain: tuple[float, float]) -> Array:
    """Every number of a 16-bit format in the domain; of float32 a sample that is dense where the two sides meet."""
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
    """∫ (f' - q)² dx on [-10, 10] of one function, by bits kept for each element.

    contiguous, shared: of few-bit tables. outputs: of the stored formulas of y, by dtype. printed: of the FewBit
    paper, Table 1; for even f' it has tables of |x|. paper: of the InvAct paper's formulas, exact but for y's dtype.
    """

    activation: Activation
    contiguous: dict[int, float]
    shared: dict[int, float]
    outputs: dict[str, tuple[int, float]]
    printed: dict[int, float]
    paper: dict[str, tuple[int, float]]


def compare(activation: Activation, bits: Iterable[int], dtypes: Iterable[str] = ("bfloat16",)) -> Comparison:
    """All methods for one function of the catalogue."""
    counts, formats = list(bits), list(dtypes)

    def outputs(paper: bool) -> dict[str, tuple[int, float]]:
        found = {dtype: from_output(activation, dtype, paper=paper) for dtype in formats}
        return {dtype: (one.bits, one.error) for dtype, one in found.items()}

    return Comparison(
        activation,
        {count: few_bits(activation, count, "contiguous").error for count in counts},
        {count: few_bits(activation, count, "shared").error for count in counts},
        outputs(paper=False),
        {i: float(text) for i, text in enumerate(TABLE_1.get(activation.name, ()), 1) if i in counts},
        outputs(paper=True) if published(activation.name) else {},
    )
