"""The template engine: formulas of fixed shape, the paper's and others, whose free constants are fitted.

Each is fitted by least squares from several seeded starts; the best fits are refitted like every other formula.
"""

import keyword
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr
from scipy.optimize import least_squares
from sympy import Symbol

from actfit.fitting.activations.grammar import parse_formula
from actfit.fitting.activations.tape import Array
from actfit.fitting.activations.vocabulary import RESERVED
from actfit.fitting.errors import InputError
from actfit.fitting.invact.engines.papers import TEMPLATES, Template
from actfit.fitting.invact.engines.problem import HUGE, Problem, Target
from actfit.fitting.invact.engines.refit import FormModel, Model, improve
from actfit.fitting.invact.formula import Form
from actfit.fitting.invact.price import improving, price
from actfit.fitting.invact.variable import S, Y, constant

__all__ = ["BUILTIN", "ENGINE", "Template", "constants_of", "parse_template", "search"]

ENGINE = "template"
LIMIT = "limit"  # in a template: the limit of g as y grows beyond all bounds
KEPT = 2  # fits of one template that are refitted
FAMILY_STARTS = 2  # smaller templates of its family whose fits are starts; random starts are then a quarter
SAME = 1e-3  # two fits whose costs differ by less are the same
BEYOND = 2  # instructions by which a formula may cost more than the first that is good enough
TRIALS = 40  # evaluations of a first fit
SPREAD, SHIFT = 0.4, 0.1  # of random starts about the given one: in parts of it, and absolute
DEPENDENT = 1e-9  # a constant is held if, but for this part, its derivative is a combination of the others'

_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\w)(?!\s*\()")


# Rough starts for the tails: of a polynomial with one zero, and of one with three, as a Gaussian needs.
_ONE_ZERO = {"a0": -1.0, "a1": 1.0, "b1": -0.1, "b2": -1.0}
_THREE_ZEROS = {
    "a0": -1.0,
    "a1": 2.1,
    "a2": -1.4,
    "a3": 0.3,
    "b1": 1.7,
    "b2": -1.1,
    "b3": 1.0,
    "b4": -1.2,
    "b5": 0.8,
    "b6": -0.3,
}


def _tail(above: int, exponent: int, start: Mapping[str, float]) -> Template:
    """g - limit as a polynomial, which has the zero of g - limit, times 2 to the power of another polynomial."""
    factor, power = [f"a{i}" for i in range(above + 1)], [f"b{i}" for i in range(1, exponent + 1)]
    text = f"{LIMIT} + ({_horner(factor)})*2**(s*({_horner(power)}))"
    return Template("tail", text, {name: start.get(name, 0.0) for name in factor + power})


def _horner(names: Sequence[str]) -> str:
    text = names[-1]
    for name in reversed(names[:-1]):
        text = f"{name} + s*({text})" if "+" in text else f"{name} + s*{text}"
    return text


BUILTIN = (
    *TEMPLATES,
    *(_tail(1, n, _ONE_ZERO) for n in range(2, 9)),
    *(_tail(3, n, _THREE_ZEROS) for n in range(4, 14)),
)


def constants_of(text: str) -> list[str]:
    """The names of a template's constants, in the order in which they first appear."""
    taken = RESERVED | {Y.name, S.name, LIMIT, *keyword.kwlist}
    return [name for name in dict.fromkeys(_NAME.findall(text)) if name not in taken]


def parse_template(text: str, start: Mapping[str, float] | None = None, limit: float | None = None) -> Form:
    """The form of a template's text: c0, c1, ... stand for its constants, in the order in which they first appear.

    text: a formula. Each name in it that is not y, s, limit, pi, E or a function is a constant.
    start: values of constants by name; 1 for the others.
    limit: the number for the name `limit`.
    Raises `InputError` if the grammar of formulas refuses the text, a constant cancels, or a start is not finite or
    not in the text.
    """
    start, names = dict(start or {}), constants_of(text)
    for name, value in start.items():
        if name not in names:
            known = f"which has {', '.join(names)}" if names else "which has none"
            raise InputError(f"start must give values to constants of the template, got {name!r} for {text!r}, {known}")
        if not math.isfinite(value):
            raise InputError(f"start must give finite numbers, got {value} for {name!r}; leave it out to begin at 1")
    symbols = [Symbol(name, real=True) for name in names]
    expression = parse_formula(text, (Y, S, *symbols), {} if limit is None else {LIMIT: limit})
    for name, symbol in zip(names, symbols, strict=True):
        if not expression.has(symbol):
            raise InputError(
                f"constants of a template must make a difference, got {name!r}, which cancels in {text!r}; leave it out"
            )
    renamed = {symbol: constant(i) for i, symbol in enumerate(symbols)}
    return Form(expression.xreplace(renamed), tuple(float(start.get(name, 1.0)) for name in names), ENGINE)


@dataclass(frozen=True)
class _Fitted:
    """A fit of template number `template`; `values` are its constants, by the template's names for them."""

    family: str
    template: int
    form: Form
    values: dict[str, float]
    price: int
    cost: float


def search(problem: Problem, seed: int = 0, budget: int = 8, templates: Sequence[Template] = BUILTIN) -> list[Form]:
    """The Pareto front of `templates`, each fitted from `budget` starts: each formula costs more and errs less.

    Templates of one name are a family: each also begins at the best earlier fits whose constants are among its own.
    Formulas are left out that are not finite at some point, have a limit where the problem has none, or cost much more
    than one that is good enough. q(0) = 0 is not imposed. The same arguments give the same forms.
    """
    limit = None if problem.tail is None else problem.tail.limit
    fits: list[_Fitted] = []
    most = math.inf
    for index, template in enumerate(templates):
        if limit is None and re.search(rf"\b{LIMIT}\b", template.text):
            continue
        form = parse_template(template.text, template.start, limit)
        instructions = price(form.expression).total
        if instructions > most:
            continue
        names = constants_of(template.text)
        starts = _starts(
            form, _family_starts(template.name, dict(zip(names, form.values, strict=True)), fits), seed, budget
        )
        for fitted in _fitted(form, problem.target, starts):
            cost, values = problem.target.cost(fitted), dict(zip(names, fitted.values, strict=True))
            if math.isfinite(cost):
                fits.append(_Fitted(template.name, index, fitted, values, instructions, cost))
            if cost <= problem.good_cost:
                most = min(most, instructions + BEYOND)
    ordered = sorted(fits, key=lambda fit: (fit.price, fit.cost))
    return [fit.form for fit in improving(ordered, lambda fit: fit.cost)]


def _family_starts(family: str, start: Mapping[str, float], fits: Sequence[_Fitted]) -> list[Array]:
    """Starts from the best fits of smaller templates of the family; constants that these lack have their own start."""
    best: dict[int, _Fitted] = {}
    for fit in sorted(fits, key=lambda fit: fit.cost):
        if fit.family == family and fit.values.keys() <= start.keys():
            best.setdefault(fit.template, fit)
    return [np.array([fit.values.get(name, start[name]) for name in start]) for fit in [*best.values()][:FAMILY_STARTS]]


def _starts(form: Form, family_starts: Sequence[Array], seed: int, budget: int) -> list[Array]:
    """The given start, the family's, and random ones around the given; a larger budget only adds starts."""
    values = np.array(form.values)
    starts = [values, *family_starts]
    for start in range(1, budget // 4 + 1 if family_starts else budget):
        draw = np.random.default_rng([seed, start])
        starts.append(values * (1.0 + SPREAD * draw.normal(size=len(values))) + SHIFT * draw.normal(size=len(values)))
    return starts


def _fitted(form: Form, target: Target, starts: Sequence[Array]) -> list[Form]:
    """The best distinct fits of one template, refitted; the template itself if it has no constants."""
    if not form.values:
        return [form]
    model, distinct = FormModel(form, target), list[tuple[float, Array]]()
    with np.errstate(all="ignore"):  # constants that overflow cost inf
        fits = [_least_squares(model, target, start) for start in starts]
        for cost, i in sorted((target.cost_of(model.error(fit)), i) for i, fit in enumerate(fits)):
            if math.isfinite(cost) and (not distinct or cost > distinct[-1][0] * (1.0 + SAME)):
                distinct.append((cost, fits[i]))
        refitted = [_refit(model, target, constants) for _, constants in distinct[:KEPT]]
    return [replace(form, values=tuple(float(value) for value in constants)) for constants in refitted]


def _least_squares(model: Model, target: Target, start: Array) -> Array:
    """Constants by weighted least squares, errors cut at `HUGE`."""
    weight = target.weight / np.linalg.norm(target.weight) / target.scale
    if len(weight) < len(start):
        return start

    def residuals(constants: Array) -> Array:
        return weight * np.clip(np.nan_to_num(model.error(constants), nan=HUGE), -HUGE, HUGE)

    def jacobian(constants: Array) -> Array:
        within = np.abs(model.error(constants)) < HUGE
        return np.where(within[:, None], weight[:, None] * model.jacobian(constants), 0.0)

    if not np.isfinite(residuals(start)).all():
        return start
    result = least_squares(residuals, start, jacobian, method="lm", x_scale="jac", max_nfev=TRIALS)
    return np.asarray(result.x)


@dataclass(frozen=True)
class _Held:
    """A model with only some constants `free`; the others have their values in `whole`."""

    model: Model
    whole: Array
    free: NDArray[np.intp]

    def with_free(self, constants: Array) -> Array:
        whole = self.whole.copy()
        whole[self.free] = constants
        return whole

    def error(self, constants: Array) -> Array:
        return self.model.error(self.with_free(constants))

    def jacobian(self, constants: Array) -> Array:
        return np.asarray(self.model.jacobian(self.with_free(constants))[:, self.free])


def _refit(model: Model, target: Target, constants: Array) -> Array:
    """Better constants. Some are held: the minimax polish needs constants whose derivatives are independent."""
    jacobian = model.jacobian(constants)
    length = np.sqrt(np.sum(jacobian**2, axis=0))
    if not np.isfinite(length).all():
        return constants
    triangle, order = qr(jacobian / np.where(length > 0.0, length, 1.0), mode="r", pivoting=True)
    diagonal = np.abs(np.diag(triangle))
    partly_held = _Held(model, constants, np.sort(order[: len(diagonal)][diagonal > DEPENDENT]))
    return partly_held.with_free(improve(partly_held, target, constants[partly_held.free]))
