"""The errors of stored invact files, computed again. `python -m coefficients check` calls `verify`."""

import math
from typing import Any

import numpy as np

from fitting.activations.tape import Array
from fitting.errors import InputError
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
INEXACT = ("exp", "expm1", "log", "log1p", "Pow")
SAMPLES = 2000


def verify(document: dict[str, Any]) -> list[str]:
    """What is wrong with the numbers of an invact document that passed its schema; empty when nothing is.

    A weight that is not stored by name is not there to check errors by; the bound is held against samples, not proven
    again.
    """
    options, solution, stored = document["options"], document["solution"], document["error"]
    try:
        activation = stored_function(document["function"])
        label = options["weight"]
        weight = named("norm" if label.startswith(UNNAMED) else label)
        floor = information_floor(activation, options["dtype"], weight)
        split = floor.split
        if (split.border, len(split.sides)) != (solution["border"], len(solution["branches"])):
            return [f"solution.border must be {split.border!r}, got {solution['border']!r}"]
        formulas = [Stored(tapes_of(branch)) for branch in solution["branches"]]
        scores = [Judge(side, floor)(formula) for side, formula in enumerate(formulas)]
    except InputError as error:
        return [str(error)]
    worst = max(scores, key=lambda score: score.linf)
    found = {"pointwise": max(score.pointwise for score in scores), "linf": worst.linf, "floor_linf": floor.linf}
    if not label.startswith(UNNAMED):
        found |= {
            "rms": math.sqrt(floor.rms**2 + sum(score.square for score in scores)),
            "floor_rms": floor.rms,
        }
    problems = differences(stored, found, RELATIVE, ABSOLUTE)
    for i, (side, formula, bound) in enumerate(zip(split.sides, formulas, stored["bound"], strict=True)):
        y = activation.f(_inside(side.lo, side.hi))
        seen = float(np.abs(formula(y) - slope_of_output(side, y)).max())
        if bound is not None and seen > bound + 1e-14:
            problems.append(f"error.bound[{i}] must be at least {seen!r}, which is found, got {bound!r}")
    return problems


def _inside(lo: float, hi: float) -> Array:
    """Points of a side, even and close to its finite ends, where formulas err most."""
    x = [np.linspace(max(lo, -30.0), min(hi, 30.0), SAMPLES)]
    x += [end + sign * np.geomspace(1e-9, 3.0, SAMPLES) for end, sign in ((lo, 1.0), (hi, -1.0)) if math.isfinite(end)]
    return np.concatenate(x)
