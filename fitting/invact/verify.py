"""The numbers of stored invact files, computed again. `python -m coefficients check` calls `verify`."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from fitting.activations import Activation
from fitting.errors import InputError
from fitting.invact.branches import Split
from fitting.invact.document import candidate_of, price_counts
from fitting.invact.error_floor import Floor, information_floor
from fitting.invact.formula import Candidate, pair_price
from fitting.invact.judge import RELAXED, Judge, Score, rule_for
from fitting.invact.proof.bound import RESOLVED, SHARP, prove
from fitting.provenance import differences, stored_function
from fitting.weights import UNNAMED, named

RELATIVE = 1e-9  # float64 functions differ by some ulp between machines
# Sums, products, quotients and square roots in float32 are the same everywhere; exp and powers differ by some ulp.
ABSOLUTE = 2.0**-22
_INEXACT = re.compile(r"exp|log|tanh|sigmoid|2\*\*\(|\*\*\(1/3\)")
UNFITTED = ("closed", "published")
Document = dict[str, Any]


def verify(document: Document) -> tuple[list[str], list[str]]:
    """What is wrong with the numbers of an invact document that passed its schema, and what could not be verified.

    Errors, floor, price, rule and proven bound are computed again. The formulas of the front's other rows are not
    stored, nor are weights that have no name.
    """
    try:
        with np.errstate(all="ignore"):
            return _verified(document, stored_function(document["function"]))
    except InputError as error:
        return [str(error)], []


def _verified(document: Document, activation: Activation) -> tuple[list[str], list[str]]:
    options, solution, stored = document["options"], document["solution"], document["error"]
    unnamed = options["weight"].startswith(UNNAMED)
    floor = information_floor(activation, options["dtype"], named("norm" if unnamed else options["weight"]))
    split = floor.split
    if (split.border, len(split.sides)) != (solution["border"], len(solution["branches"])):
        return [f"solution.border must be {split.border!r}, got {solution['border']!r}"], []
    candidates = [candidate_of(branch) for branch in solution["branches"]]
    judges = [Judge(side, floor) for side in range(len(candidates))]
    scores = [judge(one) for judge, one in zip(judges, candidates, strict=True)]
    exact_in_float32 = not any(_INEXACT.search(branch["expression"]) for branch in solution["branches"])
    spare = 0.0 if exact_in_float32 else ABSOLUTE
    problems = [*_misplaced(split, solution), *_priced(candidates, solution)]
    problems += _errors(floor, scores, stored, spare, unnamed)
    many = [judge.at_many(one) for judge, one in zip(judges, candidates, strict=True)]
    sure = [replace(one, pointwise=max(one.pointwise, far)) for one, far in zip(scores, many, strict=True)]
    problems += differences(stored, {"pointwise": max(one.pointwise for one in sure)}, RELATIVE, spare)
    problems += _misproven(candidates, floor, stored)
    wrong, unverified = _ruled(floor, sure, options, solution, unnamed)
    problems += wrong + _front(solution, stored)
    if unnamed:
        unverified.append("error.rms and error.floor_rms, as the weight is not in the file")
    others = len(solution["front"]) - 1
    if others:
        unverified.append(f"{others} other row{'s' * (others > 1)} of solution.front, as their formulas are not stored")
    return problems, [] if problems else unverified


def _errors(floor: Floor, scores: Sequence[Score], stored: Document, spare: float, unnamed: bool) -> list[str]:
    worst = max(scores, key=lambda score: score.linf)
    found, floors = {"linf": worst.linf}, {"floor_linf": floor.linf}
    if not unnamed:
        found["rms"] = math.sqrt(floor.rms**2 + sum(score.square for score in scores))
        floors["floor_rms"] = floor.rms
    problems = differences(stored, floors, RELATIVE) + differences(stored, found, RELATIVE, spare)
    if not spare:  # elsewhere errors that are nearly the same change places
        problems += differences(stored, {"linf_at": worst.linf_at}, RELATIVE)
    return problems


def _priced(candidates: Sequence[Candidate], solution: Document) -> list[str]:
    left, *right = candidates
    price = price_counts(pair_price(left, *right) if right else left.price)
    return [] if price == solution["price"] else [f"solution.price must be {price}, got {solution['price']}"]


def _misproven(candidates: Sequence[Candidate], floor: Floor, stored: Document) -> list[str]:
    """Where a bound or a sample is not what is proven and found again, to what either leaves open."""
    problems = []
    for i, (candidate, side) in enumerate(zip(candidates, floor.split.sides, strict=True)):
        proven = prove(candidate, side)
        for key, right in (("bound", proven.upper), ("sampled", proven.sampled)):
            got = math.inf if stored[key][i] is None else float(stored[key][i])
            if got != right and not abs(got - right) <= SHARP * min(got, right) + RESOLVED:
                problems.append(f"error.{key}[{i}] must be {right!r}, found again, got {stored[key][i]!r}")
    return problems


def _ruled(
    floor: Floor, scores: Sequence[Score], options: Document, solution: Document, unnamed: bool
) -> tuple[list[str], list[str]]:
    """Whether the rule is the one that holds, and its formulas keep it."""
    engines = dict.fromkeys(branch["engine"] for branch in solution["branches"])
    rule, got = rule_for(floor, options["max_error"]), solution["rule"]
    if rule.by_rms and unnamed:
        return [], ["solution.rule, as the weight is not in the file"]
    fits = rule.fits(scores)
    if set(engines) <= set(UNFITTED):
        name = "+".join(engines)
        right = name if fits else f"{name}; misses: {rule.text}"
    elif rule.by_rms and not fits and got == RELAXED:
        return [], ["solution.rule, as the least error that was found for it is not stored"]
    elif not fits:
        return [f"solution.rule must be kept by the formulas, and they miss: {rule.text}; got {got!r}"], []
    else:
        right = rule.text
    return [] if got == right else [f"solution.rule must be {right!r}, got {got!r}"], []


def _front(solution: Document, stored: Document) -> list[str]:
    """The row that was chosen must be in the front, and the others must each cost more than the last, and err less."""
    engine = "+".join(dict.fromkeys(branch["engine"] for branch in solution["branches"]))
    own = {"instructions": solution["price"]["instructions"], "engine": engine}
    own |= {key: stored[key] for key in ("rms", "linf", "pointwise")}
    if own not in solution["front"]:
        return [f"solution.front must have the row that was chosen, {own}"]
    others = [row for row in solution["front"] if row != own]
    for before, row in pairwise(others):
        if row["instructions"] == before["instructions"]:
            return [f"solution.front must have one other row a price, got two of {row['instructions']} instructions"]
        if all(row[key] > before[key] for key in ("rms", "linf", "pointwise")):
            return [f"solution.front must have rows that err less as they cost more, got {row} after {before}"]
    return []


def _misplaced(split: Split, solution: Document) -> list[str]:
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
