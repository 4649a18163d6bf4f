"""The errors of stored invact files, computed again. `python -m coefficients check` calls `verify`."""

import math
import re
from typing import Any

import numpy as np

from fitting.activations.tape import Array
from fitting.errors import InputError
from fitting.invact.branches import Split
from fitting.invact.candidate import Stored
from fitting.invact.document import tapes_of
from fitting.invact.exact import slope_of_output
from fitting.invact.floor import information_floor
from fitting.invact.judge import Judge
from fitting.provenance import differences, stored_function
from fitting.weights import UNNAMED, named

RELATIVE = 1e-9  # float64 functions differ by some ulp between machines
# Sums, products, quotients and square roots in float32 are the same everywhere; exp and powers differ by some ulp.
ABSOLUTE = 2.0**-22
_INEXACT = re.compile(r"exp|log|tanh|sigmoid|2\*\*\(|\*\*\(1/3\)")
SAMPLES = 2000


def verify(document: dict[str, Any]) -> list[str]:
    """What is wrong with the numbers of an invact document that passed its schema; empty when nothing is.

    A weight that is not stored by name is not there to check errors by; the bound is held against samples, not proven
    again.
    """
    options, solution, stored = document["options"], document["solution"], document["error"]
    with np.errstate(all="ignore"):
        return _verified(options, solution, stored, document["function"])


def _verified(
    options: dict[str, Any], solution: dict[str, Any], stored: dict[str, Any], function: dict[str, Any]
) -> list[str]:
    try:
        activation = stored_function(function)
        label = options["weight"]
        weight = named("norm" if label.startswith(UNNAMED) else label)
        floor = information_floor(activation, options["dtype"], weight)
        split = floor.split
        if (split.border, len(split.sides)) != (solution["border"], len(solution["branches"])):
            return [f"solution.border must be {split.border!r}, got {solution['border']!r}"]
        formulas = [Stored(tapes_of(branch)) for branch in solution["branches"]]
        judges = [Judge(side, floor) for side in range(len(formulas))]
        scores = [judge(formula) for judge, formula in zip(judges, formulas, strict=True)]
    except InputError as error:
        return [str(error)]
    worst = max(scores, key=lambda score: score.linf)
    exact_in_float32 = not any(_INEXACT.search(branch["expression"]) for branch in solution["branches"])
    found = {"linf": worst.linf}
    floors = {"floor_linf": floor.linf}
    if not label.startswith(UNNAMED):
        found["rms"] = math.sqrt(floor.rms**2 + sum(score.square for score in scores))
        floors["floor_rms"] = floor.rms
    problems = differences(stored, floors, RELATIVE)
    problems += differences(stored, found, RELATIVE, 0.0 if exact_in_float32 else ABSOLUTE)
    pointwise = max(judge.at_many(formula) for judge, formula in zip(judges, formulas, strict=True))
    if pointwise > stored["pointwise"] * (1 + RELATIVE) + ABSOLUTE * (not exact_in_float32):
        problems.append(f"error.pointwise must be at least {pointwise!r}, which is found, got {stored['pointwise']!r}")
    problems += _misplaced(split, solution)
    for i, (side, formula, bound) in enumerate(zip(split.sides, formulas, stored["bound"], strict=True)):
        y = activation.f(_inside(side.lo, side.hi))
        g = slope_of_output(side, y)
        seen = float((np.abs(formula(y) - g) / np.maximum(1.0, np.abs(g))).max())
        if bound is not None and seen > bound + 1e-14:
            problems.append(f"error.bound[{i}] must be at least {seen!r}, which is found, got {bound!r}")
    return problems


def _misplaced(split: Split, solution: dict[str, Any]) -> list[str]:
    """Where a file's sides are not those of its function."""
    side = None if split.border is None else "left" if split.border_is_left else "right"
    wanted = [([end if math.isfinite(end) else None for end in one.range], one.direction) for one in split.sides]
    found = [(branch["y"], branch["direction"]) for branch in solution["branches"]]
    problems = [] if solution["border_side"] == side else [f"solution.border_side must be {side!r}"]
    return problems + [
        f"solution.branches[{i}] must have y = {y} and direction {direction}"
        for i, ((y, direction), got) in enumerate(zip(wanted, found, strict=True))
        if got != (y, direction)
    ]


def _inside(lo: float, hi: float) -> Array:
    """Points of a side, even and close to its finite ends, where formulas err most."""
    x = [np.linspace(max(lo, -30.0), min(hi, 30.0), SAMPLES)]
    x += [end + sign * np.geomspace(1e-9, 3.0, SAMPLES) for end, sign in ((lo, 1.0), (hi, -1.0)) if math.isfinite(end)]
    return np.concatenate(x)
