"""The numbers of stored invact files, computed again: `actfit check` calls `verify`."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from actfit.coefficients.cut_output import CutOutput
from actfit.fitting.activations import Activation
from actfit.fitting.errors import InputError
from actfit.fitting.invact.branches import Split
from actfit.fitting.invact.document import candidate_of, price_counts
from actfit.fitting.invact.error_floor import ErrorFloor, information_floor
from actfit.fitting.invact.formula import Candidate
from actfit.fitting.invact.front import Row, judged, with_many_outputs
from actfit.fitting.invact.judge import RELAXED, Judge, rule_for
from actfit.fitting.invact.proof import RESOLVED, SHARP, prove
from actfit.fitting.provenance import differences, stored_function
from actfit.fitting.weights import Weight, named, stored_weight

RELATIVE = 1e-9  # float64 functions differ by some ulp between machines
NOISE = 2.0**-50  # four ulp of an f' of 1: by which rounding moves an error floor of 0
# Sums, products, quotients and square roots in float32 are the same everywhere; exp and powers differ by some ulp.
ABSOLUTE = 2.0**-22
_INEXACT = re.compile(r"exp|log|tanh|sigmoid|2\*\*\(|\*\*\(1/3\)")
Document = dict[str, Any]


def verify(document: Document, weights: Sequence[Weight] = ()) -> tuple[list[str], list[str]]:
    """Compute the errors, error floor, price, rule and proven bound of an invact document again.

    The other rows of the front cannot be verified, as files do not hold them, nor can what depends on samples or a
    Python density that is not among `weights`.

    weights: those that files hold by a hash or a name only.
    Returns what is wrong with its numbers, and what could not be verified.
    """
    try:
        with np.errstate(all="ignore"):
            return _verified(document, stored_function(document["function"]), weights)
    except InputError as error:
        return [str(error)], []


def _verified(document: Document, activation: Activation, weights: Sequence[Weight]) -> tuple[list[str], list[str]]:
    options, solution, stored = document["options"], document["solution"], document["error"]
    weight = stored_weight(options["weight"], weights)
    unnamed = weight is None
    error_floor = information_floor(
        activation, options["dtype"], weight or named("norm"), options.get("bits", 1), CutOutput.of(solution)
    )
    split = error_floor.split
    if (split.border, len(split.branches)) != (solution["border"], len(solution["branches"])):
        return [f"solution.border must be {split.border!r}, got {solution['border']!r}"], []
    candidates = tuple(candidate_of(branch) for branch in solution["branches"])
    judges = [Judge(index, error_floor) for index in range(len(candidates))]
    row = judged(error_floor, judges, candidates)
    close = with_many_outputs(row, judges)
    inexact = any(_INEXACT.search(branch["expression"]) for branch in solution["branches"])
    tolerance = ABSOLUTE if inexact else 0.0
    problems = _misplaced(split, solution) + _mispriced(row, solution)
    problems += _errors(error_floor, row, stored, tolerance, unnamed)
    problems += differences(stored, {"pointwise": close.pointwise}, RELATIVE, tolerance)
    problems += _misproven(candidates, error_floor, stored)
    wrong, unverified = _ruled(error_floor, close, options, solution, unnamed)
    problems += wrong + _front(row, solution, stored)
    if unnamed:
        unverified.append("error.rms and error.floor_rms, as the weight is not in the file (samples: --weight FILE)")
    others = len(solution["front"]) - 1
    if others:
        unverified.append(f"{others} other row{'s' * (others > 1)} of solution.front, as their formulas are not stored")
    return problems, [] if problems else unverified


def _errors(error_floor: ErrorFloor, row: Row, stored: Document, tolerance: float, unnamed: bool) -> list[str]:
    errors, floors = {"linf": row.linf}, {"floor_linf": error_floor.linf}
    if not unnamed:
        errors["rms"] = row.rms
        floors["floor_rms"] = error_floor.rms
    problems = differences(stored, floors, RELATIVE, NOISE) + differences(stored, errors, RELATIVE, tolerance)
    if not tolerance:  # else two errors that are nearly the same may change places
        problems += differences(stored, {"linf_at": row.linf_at}, RELATIVE)
    return problems


def _mispriced(row: Row, solution: Document) -> list[str]:
    price = price_counts(row.price)
    return [] if price == solution["price"] else [f"solution.price must be {price}, got {solution['price']}"]


def _misproven(candidates: Sequence[Candidate], error_floor: ErrorFloor, stored: Document) -> list[str]:
    """The stored bounds and samples that differ from new ones by more than the prover's tolerance."""
    problems = []
    for i, (candidate, branch) in enumerate(zip(candidates, error_floor.split.branches, strict=True)):
        proven = prove(candidate, branch)
        for key, right in (("bound", proven.upper), ("sampled", proven.sampled)):
            got = math.inf if stored[key][i] is None else float(stored[key][i])
            if got != right and not abs(got - right) <= SHARP * min(got, right) + RESOLVED:
                problems.append(f"error.{key}[{i}] must be {right!r}, found again, got {stored[key][i]!r}")
    return problems


def _ruled(
    error_floor: ErrorFloor, row: Row, options: Document, solution: Document, unnamed: bool
) -> tuple[list[str], list[str]]:
    """Problems of the rule (another rule holds, or the formulas break it), and a note if it cannot be verified."""
    rule, stored_rule = rule_for(error_floor, options["max_error"]), solution["rule"]
    if rule.by_rms and unnamed:
        return [], ["solution.rule, as the weight is not in the file (samples: --weight FILE)"]
    fits = rule.fits(row.scores)
    if not row.is_fitted:
        right = row.engine if fits else f"{row.engine}; misses: {rule.text}"
    elif rule.by_rms and not fits and stored_rule == RELAXED:
        return [], ["solution.rule, as the least error that was found for it is not stored"]
    elif not fits:
        return [f"solution.rule must be kept by the formulas, and they miss: {rule.text}; got {stored_rule!r}"], []
    else:
        right = rule.text
    return [] if stored_rule == right else [f"solution.rule must be {right!r}, got {stored_rule!r}"], []


def _front(row: Row, solution: Document, stored: Document) -> list[str]:
    """The front must have the stored row; each other row must cost more and err less than the row before it."""
    stored_row = {"instructions": solution["price"]["instructions"], "engine": row.engine}
    stored_row |= {key: stored[key] for key in ("rms", "linf", "pointwise")}
    if stored_row not in solution["front"]:
        return [f"solution.front must have the row that was chosen, {stored_row}"]
    others = [other for other in solution["front"] if other != stored_row]
    for before, after in pairwise(others):
        price = after["instructions"]
        if price == before["instructions"]:
            return [f"solution.front must have one other row a price, got two of {price} instructions"]
        if all(after[key] > before[key] for key in ("rms", "linf", "pointwise")):
            return [f"solution.front must have rows that err less as they cost more, got {after} after {before}"]
    return []


def _misplaced(split: Split, solution: Document) -> list[str]:
    """The branches in a file that differ from those of its function."""
    border_side = None if split.border is None else "left" if split.border_is_left else "right"
    right = [
        ([end if math.isfinite(end) else None for end in branch.range], branch.direction) for branch in split.branches
    ]
    stored = [(branch["y"], branch["direction"]) for branch in solution["branches"]]
    problems = [] if solution["border_side"] == border_side else [f"solution.border_side must be {border_side!r}"]
    return problems + [
        f"solution.branches[{i}] must have y = {y} and direction {direction}"
        for i, ((y, direction), got) in enumerate(zip(right, stored, strict=True))
        if got != (y, direction)
    ]
