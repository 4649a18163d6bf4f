"""Plans with as few elements in codes as possible."""

import itertools
import warnings
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actfit import KernelError, Plan, compress, make_plan, saved_bytes
from actfit.kernels.graph.planning import CapturedTask
from actfit.kernels.planning import fastest, planner
from actfit.kernels.planning.batches import call_of
from actfit.kernels.planning.budget import Limits
from actfit.kernels.planning.planner import plan_of
from actfit.kernels.planning.prices import Prices
from actfit.kernels.planning.solve import BITS_OR_WHOLE, GAP, TIE, with_fewest_codes
from actfit.kernels.planning.step import Step
from tests.kernels.planning.nets import text
from tests.kernels.planning.test_solve import errors_of, steps


def coded(step: Step, bits: Mapping[str, int | None]) -> int:
    """Elements in codes, in units of 8."""
    return sum(site.per_bit for site in step.sites if bits[site.name] is not None)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_fewest_elements_of_all_plans(data: st.DataObject) -> None:
    step = data.draw(steps())
    errors = data.draw(errors_of(step))
    names = [site.name for site in step.sites]
    bound = sum(errors[name][data.draw(st.sampled_from((2, 4, 8)))] for name in names)
    low, high = (step.kept_with(dict.fromkeys(names, bits)) for bits in (2, None))
    limits = Limits(kept=low + int(data.draw(st.floats(0, 1)) * (high - low)))

    def error(plan: Mapping[str, int | None]) -> float:
        return sum(0.0 if bits is None else errors[name][bits] for name, bits in plan.items())

    every = (dict(zip(names, bits, strict=True)) for bits in itertools.product(BITS_OR_WHOLE, repeat=len(names)))
    possible = [plan for plan in every if limits.hold(step, plan) and error(plan) <= bound]
    solution = with_fewest_codes(step, errors, limits, bound)
    # HiGHS takes rows as held within 1e-6 of their scale: a plan may be found where the bound is missed by as much.
    if not possible:
        assert solution is None or error(solution.bits) <= bound * (1 + 1e-6)
        return
    assert solution is not None
    assert limits.hold(step, solution.bits)
    assert error(solution.bits) <= bound * (1 + 1e-6)
    total = coded(step, step.everywhere(2))
    fewest = min(coded(step, plan) for plan in possible)
    # It stops within GAP of the least sum of elements and TIE's worth of error; its own tolerance is 1e-6 of a cost.
    assert coded(step, solution.bits) / total <= (fewest / total + TIE) / (1 - GAP) + 1e-6 * (len(names) + 1)


def elements_in_codes(plan: Plan) -> int:
    """Bytes of all tensors in codes, as whole tensors."""
    return sum(site.whole for site in plan.sites if site.bits is not None)


@pytest.fixture
def cheap_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes cost so little that no block is computed again instead."""
    monkeypatch.setattr(planner, "measure", lambda task, blocks: Prices(0.0, 0.01, 1.0, dict.fromkeys(blocks, 0.5)))


@pytest.fixture(scope="module")
def task() -> CapturedTask:
    model, inputs = text(2)
    return CapturedTask(model, call_of(inputs))


@pytest.mark.slow
@pytest.mark.usefixtures("cheap_codes")
def test_fewer_elements_in_codes_within_the_same_budget(task: CapturedTask) -> None:
    exact, fast = plan_of(task, 0.4, goal="error"), plan_of(task, 0.4, max_gradient_error=0.2)
    assert (exact.goal, fast.goal) == ("error", "time")
    assert elements_in_codes(fast) < elements_in_codes(exact)
    assert fast.planned.kept <= 0.4 * fast.stock.kept
    assert fast.errors.measured <= 0.2
    assert "more elements may be in codes than need be" in str(replace(fast, gap=0.01))
    assert "The search ran out of time" in str(replace(fast, gap=1.0))
    model, inputs = text(2)
    compress(model, plan=fast)
    # A norm's 1/std of each of 256 rows is saved where what it normalises has codes; the plan counts it for both.
    assert 0 <= fast.planned.kept - saved_bytes(model, *inputs).total <= 2 * 256 * 4


@pytest.mark.slow
@pytest.mark.usefixtures("cheap_codes")
def test_a_bound_on_the_error_holds_on_other_samples(task: CapturedTask) -> None:
    loose = plan_of(task, 0.3, max_gradient_error=0.1)
    bound = loose.errors.measured / 2
    tight = plan_of(task, 0.3, max_gradient_error=bound)
    assert tight.errors.measured <= bound < loose.errors.measured <= 0.1
    assert elements_in_codes(loose) <= elements_in_codes(tight)


@pytest.mark.slow
@pytest.mark.usefixtures("cheap_codes")
def test_a_plan_that_errs_too_much_on_other_samples_is_not_taken(
    task: CapturedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = plan_of(task, 0.4, max_gradient_error=0.2, goal="error")
    monkeypatch.setattr(fastest, "TRIES", 0)  # as if none were within the bound
    plan = plan_of(task, 0.4, max_gradient_error=0.2)
    assert plan.goal == "error"
    assert [site.bits for site in plan.sites] == [site.bits for site in exact.sites]


def test_a_goal_that_is_none() -> None:
    with pytest.raises(KernelError, match="goal must be one of time, error, got 'speed'"):
        make_plan(*text(1), 0.4, goal="speed")  # type: ignore[arg-type]


def test_a_budget_that_only_larger_errors_meet_is_warned_of() -> None:
    """In float32, by default, gradients are exact; one that is not is told, and the same on request is not."""
    model, inputs = text(1)
    with pytest.warns(
        UserWarning, match=r"budget must be larger for gradients as exact .*, got 0.1: those of this plan err by"
    ):
        plan = make_plan(model, inputs, 0.1)
    assert plan.errors.measured > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_plan(model, inputs, 0.1, goal="error")
