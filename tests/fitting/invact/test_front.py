"""The front: formulas that miss the largest error narrowly are polished again."""

from dataclasses import replace

import pytest

from actfit.coefficients import load
from actfit.fitting.activations import get
from actfit.fitting.invact import engines
from actfit.fitting.invact.document import candidate_of
from actfit.fitting.invact.engines import Settings
from actfit.fitting.invact.engines.problem import problems
from actfit.fitting.invact.engines.stretch import stretch_of
from actfit.fitting.invact.error_floor import information_floor
from actfit.fitting.invact.front import NEAR, _with_another_polish, proposals
from actfit.fitting.invact.judge import Judge, Rule, rule_for
from actfit.fitting.weights import named


@pytest.fixture(scope="module")
def spoilt():
    """silu's right formula in float32 with a constant moved, its judge and its problem."""
    error_floor = information_floor(get("silu"), "float32", named("norm"))
    variable, problem = problems(stretch_of(error_floor.split, 1), error_floor, rule_for(error_floor))[0]
    candidate = candidate_of(load("silu", "invact-float32")["solution"]["branches"][1])
    values = (candidate.form.values[0] * (1 + 1e-6), *candidate.form.values[1:])
    return (
        replace(candidate, form=replace(candidate.form, values=values), variable=variable),
        problem,
        Judge(1, error_floor),
    )


def test_what_misses_narrowly_gets_better_constants(spoilt):
    candidate, problem, judge = spoilt
    error = judge(candidate).pointwise
    first, second = _with_another_polish(candidate, problem, Rule("a tenth less", pointwise=error / 1.1), judge)
    assert first == (candidate, judge(candidate))
    assert second[1].pointwise < error / 1.1
    assert second[0].form.expression == candidate.form.expression


def test_what_passes_misses_widely_or_counts_squares_is_left_alone(spoilt):
    candidate, problem, judge = spoilt
    error = judge(candidate).pointwise
    rules = [
        Rule("passes", pointwise=error),
        Rule("misses", pointwise=0.99 * error / NEAR),
        Rule("squares", square=1e-9),
    ]
    for rule in rules:
        assert _with_another_polish(candidate, problem, rule, judge) == [(candidate, judge(candidate))]


@pytest.mark.parametrize(("name", "instructions"), [("mish", 46), ("quick_gelu", 47)])
def test_what_it_saves(name, instructions):
    document = load(name, "invact-float32")
    assert document["solution"]["price"]["instructions"] == instructions
    assert document["error"]["pointwise"] <= 2.0**-20


def test_runs_of_operon_are_reported_one_by_one(monkeypatch):
    def search(data, seed, budget, progress, accept):
        for run in range(budget):
            progress(run + 1)
        return []

    error_floor = information_floor(get("silu"), "float32", named("norm"))
    judges = [Judge(branch, error_floor) for branch in (0, 1)]
    reported = []
    monkeypatch.setattr(engines.operon, "search", search)
    proposals(
        error_floor, rule_for(error_floor), judges, ("operon",), Settings(budget=2), lambda *step: reported.append(step)
    )
    runs = ["operon: run 1 of 2 is done", "operon: run 2 of 2 is done", ""]
    assert reported == [(0, 2, runs[0]), (0, 2, runs[1]), (1, 2, ""), (1, 2, runs[0]), (1, 2, runs[1]), (2, 2, "")]
