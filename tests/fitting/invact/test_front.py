"""The front: formulas that miss the largest error narrowly are polished again."""

from dataclasses import replace

from actfit.coefficients import load
from actfit.fitting.activations import get
from actfit.fitting.invact.document import candidate_of
from actfit.fitting.invact.engines.problem import problems
from actfit.fitting.invact.engines.stretch import stretch_of
from actfit.fitting.invact.error_floor import information_floor
from actfit.fitting.invact.front import _with_another_polish
from actfit.fitting.invact.judge import Judge, Rule, rule_for
from actfit.fitting.weights import named


def test_what_misses_narrowly_gets_better_constants():
    """silu's right formula in float32 with a constant moved."""
    error_floor = information_floor(get("silu"), "float32", named("norm"))
    variable, problem = problems(stretch_of(error_floor.split, 1), error_floor, rule_for(error_floor))[0]
    candidate, judge = candidate_of(load("silu", "invact-float32")["solution"]["branches"][1]), Judge(1, error_floor)
    values = (candidate.form.values[0] * (1 + 1e-6), *candidate.form.values[1:])
    candidate = replace(candidate, form=replace(candidate.form, values=values), variable=variable)
    error = judge(candidate).pointwise
    first, second = _with_another_polish(candidate, problem, Rule("a tenth less", pointwise=error / 1.1), judge)
    assert first == (candidate, judge(candidate))
    assert second[1].pointwise < error / 1.1
    assert second[0].form.expression == candidate.form.expression
