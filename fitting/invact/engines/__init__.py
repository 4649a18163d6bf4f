"""The engines by name. All have one interface: a problem in, the Pareto front of formulas out.

`closed_form` is the engine for functions whose inverse is known; it needs no problem, and `solve` asks it first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from actfit.fitting.activations.tape import Array
from actfit.fitting.errors import InputError, nearest
from actfit.fitting.invact import arguments
from actfit.fitting.invact.engines import minimax, papers, template
from actfit.fitting.invact.engines.problem import Problem
from actfit.fitting.invact.engines.refit import refit
from actfit.fitting.invact.formula import Form
from actfit.fitting.invact.price import improving, price
from actfit.fitting.invact.symbolic import Data, operon, pysr, sound_at
from actfit.fitting.invact.symbolic.equations import read_hall_of_fame

RUNS = 8  # of operon
MAXSIZE = 30  # nodes of a formula that PySR looks for


@dataclass(frozen=True)
class Settings:
    """The settings of the engines that a user may change."""

    seed: int = 0  # random seed of the stochastic engines
    # starts of a template, runs of operon, iterations of PySR; each engine's own number if None
    budget: int | None = None
    imported: Path | None = None  # a folder with PySR's hall_of_fame.csv, whose formulas join the others
    templates: tuple[template.Template, ...] = ()  # the user's own templates
    timeout: float | None = None  # seconds for each search by PySR. A search that it ends is not repeatable.


Report = Callable[[str], None]  # takes a short text of what is being done
Engine = Callable[[Problem, Settings, Report], list[Form]]


def _minimax(problem: Problem, settings: Settings, report: Report) -> list[Form]:
    return minimax.search(problem)


def _template(problem: Problem, settings: Settings, report: Report) -> list[Form]:
    known = (*template.BUILTIN, *settings.templates)
    return template.search(problem, settings.seed, settings.budget or 8, known)


def _operon(problem: Problem, settings: Settings, report: Report) -> list[Form]:
    runs = settings.budget or RUNS

    def done(count: int) -> None:
        report(f"operon: run {count} of {runs} is done")

    forms = operon.search(_data(problem), settings.seed, runs, done, _sound(problem))
    return refitted(forms, problem)


def _pysr(problem: Problem, settings: Settings, report: Report) -> list[Form]:
    forms = pysr.search(
        _data(problem),
        settings.seed,
        settings.budget or 40,
        maxsize=MAXSIZE,
        timeout=settings.timeout,
        guesses=[form for form in minimax.search(problem) if pysr.spell(form)[1] <= MAXSIZE][-3:],
        accept=_sound(problem),
    )
    return refitted(forms, problem)


def _imported(problem: Problem, settings: Settings, report: Report) -> list[Form]:
    if settings.imported is None:
        return []
    sound = _sound(problem)
    return refitted([form for form in read_hall_of_fame(settings.imported) if sound(form)], problem)


ENGINES: dict[str, Engine] = dict(zip(arguments.ENGINES, (_minimax, _template, _operon, _pysr), strict=True))
IMPORTED: Engine = _imported
DEFAULT = arguments.DEFAULT
SLOW = ("operon", "pysr")
ALL = (*DEFAULT, "operon")  # PySR, which needs Julia, must be asked for by name


def parse_engines(text: str) -> tuple[str, ...]:
    """The engines that `text` names: some, joined by commas, or all; `published` alone means the paper's formulas.

    Raises `InputError` for an unknown engine.
    """
    if text == "all":
        return ALL
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if names == (papers.ENGINE,):
        return names
    if papers.ENGINE in names:
        raise InputError(f"engine published goes alone, got {text!r}: the paper's formulas are in every table anyway")
    for name in names:
        if name not in ENGINES:
            known = [*ENGINES, "all", papers.ENGINE]
            raise InputError(f"engine must be one of {', '.join(known)}, got {name!r}; {nearest(name, known)}")
    return names


def refitted(forms: Sequence[Form], problem: Problem) -> list[Form]:
    """The forms with the constants that suit the problem best; of these the Pareto front by price and cost."""
    scored = []
    for form in forms:
        better = refit(form, problem.target)
        scored.append((price(better.expression).total, problem.target.cost(better), str(better.expression), better))
    ordered = sorted((entry for entry in scored if np.isfinite(entry[1])), key=lambda entry: entry[:3])
    return [form for *_, form in improving(ordered, lambda entry: entry[1])]


def _data(problem: Problem) -> Data:
    target = problem.target
    return Data(target.y, target.s, target.value, np.asarray(target.weight) ** 2)


def _sound(problem: Problem) -> Callable[[Form], bool]:
    y, s = _denser(problem.target.y, problem.target.s)
    return lambda form: sound_at(form, y, s)


def _denser(y: Array, s: Array) -> tuple[Array, Array]:
    """The points and many between them, where a narrow pole would hide."""
    order = np.argsort(s, kind="stable")
    at = np.linspace(0.0, len(s) - 1.0, 20 * len(s))
    ranks = np.arange(len(s))
    return np.interp(at, ranks, y[order]), np.interp(at, ranks, s[order])
