"""The rows among which a fit is selected: closed forms, and combinations of the formulas that engines propose."""

import math
from collections.abc import Callable
from itertools import product

import numpy as np

from fitting.invact.engines import ENGINES, IMPORTED, SLOW, Engine, Settings
from fitting.invact.engines.closed_form import closed_candidate
from fitting.invact.engines.problem import Problem, joint_problems, problems
from fitting.invact.engines.stretch import stretch_of
from fitting.invact.error_floor import ErrorFloor
from fitting.invact.formula import Candidate, Form
from fitting.invact.front import Row, branch_front, judged, row_of
from fitting.invact.judge import Judge, Rule

JOINT = 1e-4  # of max |g|: the least error for which one formula for both branches is tried

Progress = Callable[[int, int], None]


def proposals(
    error_floor: ErrorFloor,
    rule: Rule,
    judges: list[Judge],
    engines: tuple[str, ...],
    settings: Settings,
    progress: Progress,
) -> list[Row]:
    """Every combination of one formula per branch that may be on the front."""
    exact = _closed_candidates(error_floor, judges)
    if all(exact):
        return [judged(error_floor, judges, tuple(candidate for candidate in exact if candidate))]
    tasks = [
        [] if candidate else problems(stretch_of(error_floor.split, index), error_floor, rule)
        for index, candidate in enumerate(exact)
    ]
    joinable = len(tasks) == 2 and all(tasks) and "minimax" in engines and _may_join(rule, error_floor)
    joint = joint_problems(*tasks) if joinable else []
    fast = [ENGINES[name] for name in engines if name not in SLOW]
    slow = [ENGINES[name] for name in engines if name in SLOW] + [IMPORTED] * (settings.imported is not None)
    count = sum(len(fast) * len(of_branch) + len(slow) * bool(of_branch) for of_branch in tasks) + len(joint)
    done = 0

    def solve(problem: Problem, engine: Engine) -> list[Form]:
        nonlocal done
        forms = engine(problem, settings)
        done += 1
        progress(done, count)
        return forms

    fronts = []
    for closed, of_branch, judge in zip(exact, tasks, judges, strict=True):
        candidates = [closed] if closed else []
        for i, (variable, problem) in enumerate(of_branch):
            asked = fast + slow * (i == len(of_branch) // 2)  # the slow engines get one variable, from the middle
            forms = [form for engine in asked for form in solve(problem, engine)]
            candidates += [Candidate(form, variable).rounded() for form in forms]
        fronts.append(branch_front([(candidate, judge(candidate)) for candidate in candidates], rule))
    rows = [row_of(error_floor, *zip(*scored, strict=True)) for scored in product(*fronts)]
    for left, right, problem in joint:
        for form in solve(problem, ENGINES["minimax"]):
            pair = Candidate(form, left).rounded(), Candidate(form, right).rounded()
            rows.append(judged(error_floor, judges, pair))
    return [row for row in rows if math.isfinite(row.linf)]


def _closed_candidates(error_floor: ErrorFloor, judges: list[Judge]) -> list[Candidate | None]:
    """The closed form of each branch; None where there is none, or float32 cannot compute it."""
    split, format_ = error_floor.split, error_floor.format
    candidates = (closed_candidate(split, branch, format_) for branch in split.branches)
    return [
        candidate if candidate and judge(candidate).finite else None
        for candidate, judge in zip(candidates, judges, strict=True)
    ]


def _may_join(rule: Rule, error_floor: ErrorFloor) -> bool:
    """Whether one formula for both branches is worth a try: not for errors far below those of a 16-bit format.

    At the left end g has a logarithm, which a formula that reaches to the right as well follows too slowly.
    """
    return rule.by_rms or rule.pointwise > JOINT * max(float(np.abs(cells.middle).max()) for cells in error_floor.cells)
