"""Closed forms of g(y) = f'(f⁻¹(y)) on a whole branch: the chain rule gives each arc's, which are joined here."""

import math
from itertools import pairwise
from typing import NamedTuple

import mpmath
import numpy as np
from sympy import Abs, And, Expr, Ge, Gt, Le, Lt, Or, Piecewise, Rational, true
from sympy.core.relational import Relational

from actfit.fitting.activations.activation import Activation
from actfit.fitting.activations.tape import Tape
from actfit.fitting.invact.branches import Branch, Split
from actfit.fitting.invact.engines.chain_rule import arc_form
from actfit.fitting.invact.formats import Format
from actfit.fitting.invact.formula import Candidate, Form
from actfit.fitting.invact.variable import Variable, Y, constant

_SAME = 1e-7  # values that differ by less are the same: a root in g makes 1e-8 of the rounding of y
_AGREE = 1e-6  # by which a closed form, in float64 at rounded y, may differ from f'
_LARGE = 1e300  # beyond it a multiple of y may overflow
_SAMPLES = np.concatenate([[0.0], np.logspace(-4, 1, 60), np.logspace(1.2, 30, 40)])
SHORT = 64  # the largest numerator and denominator of a number that a formula shows as it is
ENGINE = "closed"


def closed_form(split: Split, branch: Branch) -> Expr | None:
    """g on a whole branch as an expression in `Y`; None if `arc_form` has none, or floats cannot evaluate it.

    At a kink g is f' as the activation defines it, and at the value of a flat part it is 0. A `y` that rounding
    has taken out of the range gives the end value, up to the size of that rounding; NaN gives NaN where g is not
    a constant there. Numbers are exact; a condition compares with the float64 next to f at the kink.
    """
    cells = _cells(split, branch)
    # f may be infinite at a kink: then its ranges left and right of it say nothing about each other.
    if cells is None or not all(math.isfinite(a.hi) and math.isfinite(b.lo) for a, b in pairwise(cells)):
        return None
    form = _assemble(_joined(cells))
    return form if _holds(split.activation, branch, form) else None


def _holds(activation: Activation, branch: Branch, form: Expr) -> bool:
    """Whether `form` equals f' at outputs of the whole branch in float64, and is never NaN, also in float32.

    An exact formula may be 0·inf in numbers: a Gaussian's, y·sqrt(-log(y)), is so at 0.
    """
    inner = np.clip([*-_SAMPLES, *_SAMPLES], branch.lo, branch.hi)
    for arc in branch.arcs:
        near = [end + _SAMPLES * sign for end, sign in ((arc.lo, 1), (arc.hi, -1)) if math.isfinite(end)]
        inner = np.concatenate([inner, *near])
    inner = inner[(inner > branch.lo) & (inner < branch.hi)]
    y, derivative, tape = activation.f(inner), activation.df(inner), Tape(form, Y)
    flat = {arc.range[0] for arc in branch.arcs if arc.direction == 0}
    used = (abs(y) < _LARGE) & (abs(derivative) < _LARGE) & ~np.isin(y, list(flat))
    with np.errstate(over="ignore"):
        y32 = y[used].astype(np.float32)
    ends = [end for arc in branch.arcs for end in arc.range if math.isfinite(end)]
    missed = abs(tape.numpy(y[used]) - derivative[used]) > _AGREE * (1 + abs(derivative[used]))
    values = [tape.numpy(y[used]), tape.numpy(np.array(ends)), tape.numpy32(y32[np.isfinite(y32)]).astype(np.float64)]
    return not missed.any() and not np.isnan(np.concatenate(values)).any()


class _Cell(NamedTuple):
    """g between two values of y, or at the one value `lo` = `hi`; `closed` says that `hi` belongs to it."""

    g: Expr
    lo: float
    hi: float
    closed: bool = False


def _cells(split: Split, branch: Branch) -> list[_Cell] | None:
    """The arcs, the kinks between them and an end that belongs to the branch, by increasing y.

    None if `arc_form` has no form for some arc.
    """
    owned = split.border if split.border_is_left == (branch.lo == split.branches[0].lo) else None
    arcs = branch.arcs if branch.direction >= 0 else branch.arcs[::-1]
    cells = []
    for i, arc in enumerate(arcs):
        g = arc_form(split.activation, arc)
        if g is None:
            return None
        # The directions of the arcs below and above. A flat part decides g at its own value of y.
        neighbours = [arcs[j].direction if 0 <= j < len(arcs) else None for j in (i - 1, i + 1)]
        ends = (arc.lo, arc.hi) if branch.direction >= 0 else (arc.hi, arc.lo)
        kinks = [
            _kink(split.activation, at, y) if neighbour or (neighbour is None and at == owned) else []
            for at, y, neighbour in zip(ends, arc.range, neighbours, strict=True)
            if arc.direction
        ]
        below, above = kinks or ([], [])
        cells += [*below, _Cell(g, *arc.range, closed=arc.direction == 0), *above]
    return cells


def _kink(activation: Activation, at: float, y: float) -> list[_Cell]:
    """f' at a border of an arc, as the activation defines it; no cell if f jumps there to another value."""
    if not abs(float(activation.f(at)) - y) <= _SAME * (1 + abs(y)):
        return []
    return [_Cell(Rational(float(activation.df(at))), y, y, closed=True)]


def _joined(cells: list[_Cell]) -> list[_Cell]:
    """The cells; one whose neighbour gives the same g is merged into it."""
    joined = [cells[0]]
    for cell in cells[1:]:
        last = joined[-1]
        if cell.g == last.g or (cell.lo == cell.hi == last.hi and _gives(last.g, cell)):
            joined[-1] = _Cell(last.g, last.lo, cell.hi, cell.closed)
        elif last.lo == last.hi == cell.lo and _gives(cell.g, last):
            joined[-1] = cell
        else:
            joined.append(cell)
    return joined


def _gives(g: Expr, point: _Cell) -> bool:
    left, right = (Tape(form, Y).mp(mpmath.mpf(point.lo)) for form in (g, point.g))
    return bool(abs(left - right) < _SAME)


def _assemble(cells: list[_Cell]) -> Expr:
    """One expression. Its last case, which NaN takes too, depends on y where that is possible."""
    above, below = [], []
    for lower, upper in pairwise(cells):
        # Where f jumps, half-way: rounding y to any type does not cross it.
        at = Rational(lower.hi) if lower.hi >= upper.lo else (Rational(lower.hi) + Rational(upper.lo)) / 2
        above.append(Gt(Y, at) if lower.closed else Ge(Y, at))
        below.append(Le(Y, at) if lower.closed else Lt(Y, at))
    forms = [cell.g for cell in cells]
    if len(forms) == 2 and cells[0].hi == cells[1].lo == 0 and forms[0] == forms[1].xreplace({Y: -Y}):
        return forms[1].xreplace({Y: Abs(Y)})
    if len(forms) == 3 and forms[0] == forms[2]:
        if forms[1].has(Y) and not forms[0].has(Y):
            return Piecewise((forms[0], Or(below[0], above[1])), (forms[1], true))
        return Piecewise((forms[1], And(above[0], below[1])), (forms[0], true))
    if forms[0].has(Y) or not forms[-1].has(Y):
        return Piecewise(*zip(forms[:0:-1], above[::-1], strict=True), (forms[0], true))
    return Piecewise(*zip(forms[:-1], below, strict=True), (forms[-1], true))


def closed_candidate(split: Split, branch: Branch, format_: Format) -> Candidate | None:
    """The closed form of a branch as a candidate for outputs of this format; None where there is no closed form."""
    form = closed_form(split, branch)
    return None if form is None else as_candidate(form, format_)


def as_candidate(expression: Expr, format_: Format, engine: str = ENGINE) -> Candidate:
    """A closed form in y (and s) as a candidate; numbers that are not short become constants, nearest in float64.

    A number that y is compared with is rounded as y was: so a y stored at the border of a case belongs to the same
    case as the border.
    """
    values: list[float] = []

    def lifted(node: Expr) -> Expr:
        if isinstance(node, Relational):
            operands = (Rational(float(format_.round(np.array(float(a))))) if a.is_number else a for a in node.args)
            return node.func(*(lifted(operand) for operand in operands))
        if node.is_number:
            if node.is_Rational and max(abs(node.p), node.q) <= SHORT:
                return node
            values.append(float(node))
            return constant(len(values) - 1)
        if node.is_Mul:
            numbers = [factor for factor in node.args if factor.is_number]
            others = [lifted(factor) for factor in node.args if not factor.is_number]
            return type(node)(*([lifted(type(node)(*numbers))] if numbers else []), *others)
        if node.is_Pow:
            return lifted(node.args[0]) ** node.args[1]
        if not node.args:
            return node
        return node.func(*(lifted(argument) for argument in node.args))

    return Candidate(Form(lifted(expression), tuple(values), engine), Variable())
