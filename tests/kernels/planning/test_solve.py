"""The solver against all plans there are, of small steps."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actfit import KernelError
from actfit.kernels.methods.planned import WIDTHS
from actfit.kernels.planning.budget import Limits
from actfit.kernels.planning.solve import BITS_OR_WHOLE, FLOOR, FLOOR_BITS, GAP, infeasible, solve, widest
from actfit.kernels.planning.step import SavedSite, Step

BITS = 4


@st.composite
def steps(draw: st.DrawFn, most: int = 3) -> Step:
    """With codes of 4 bits; sites are saved one after another and freed in any order, and may save the same tensor."""
    count = draw(st.integers(1, most))
    freed = draw(st.permutations(range(count)))
    sizes = draw(st.lists(st.integers(1, 40).map(lambda groups: 8 * groups), min_size=count, max_size=count))
    sites = []
    for place in range(count):
        tensor = draw(st.integers(0, place))
        elements = sizes[tensor]
        life = place + 1, count + 2 + freed[place]
        sites.append(SavedSite(f"{place}: f", 4 * elements, elements // 8, 4, *life, tensor=tensor))
    rest = draw(st.lists(st.integers(0, 2000), min_size=2 * count + 2, max_size=2 * count + 2))
    alive = [
        sum(site.bytes(BITS) for site in sites if site.born <= segment < site.dead) for segment in range(len(rest))
    ]
    peaks = [more + now for more, now in zip(rest, alive, strict=True)]
    return Step(sites, BITS, peaks, count + 1, sum(site.bytes(BITS) for site in sites))


@st.composite
def errors_of(draw: st.DrawFn, step: Step) -> dict[str, dict[int, float]]:
    scales = {site.name: 10.0 ** draw(st.integers(-6, 0)) * draw(st.integers(1, 9)) for site in step.sites}
    return {name: {bits: scale / (2**bits - 1) ** 2 for bits in WIDTHS} for name, scale in scales.items()}


def all_or_none(step: Step, plan: tuple[int | None, ...]) -> bool:
    """Whether a tensor is whole for all of its sites or for none."""
    return all(len({plan[number] is None for number in group}) == 1 for group in step.alike)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_least_error_of_all_plans(data: st.DataObject) -> None:
    step = data.draw(steps())
    errors = data.draw(errors_of(step))
    names = [site.name for site in step.sites]
    low, high = (
        (step.peak_with(dict.fromkeys(names, bits)), step.kept_with(dict.fromkeys(names, bits))) for bits in (2, None)
    )
    share = data.draw(st.floats(0, 1))
    peak, kept = (int(least + share * (most - least)) for least, most in zip(low, high, strict=True))
    limits = Limits(peak=peak) if data.draw(st.booleans()) else Limits(kept=kept)
    solution = solve(step, errors, limits)
    assert limits.hold(step, solution.bits)

    def cost(plan: tuple[int | None, ...]) -> float:
        return sum(0.0 if bits is None else errors[name][bits] for name, bits in zip(names, plan, strict=True))

    plans = [plan for plan in itertools.product(BITS_OR_WHOLE, repeat=len(names)) if all_or_none(step, plan)]
    assert all_or_none(step, tuple(solution.bits.values()))
    least = min(cost(plan) for plan in plans if limits.hold(step, dict(zip(names, plan, strict=True))))
    assert solution.error == pytest.approx(cost(tuple(solution.bits.values())))
    # HiGHS stops within GAP of the least; and its own feasibility tolerance of 1e-6 is of errors scaled to at most 1.
    largest = max(errors[name][2] for name in names)
    # What is least is the sum of errors and of the floor, of which 2 bits at every site have most: 4² times that of 4.
    floor = FLOOR * sum(errors[name][FLOOR_BITS] for name in names) * 4.0 ** (FLOOR_BITS - 2)
    assert least <= solution.error * (1 + 1e-12)
    assert solution.error <= (least + floor) / (1 - GAP) + 1e-6 * (largest + floor)


@settings(max_examples=30, deadline=None)
@given(step=steps(most=6))
def test_the_widest_codes_that_fit(step: Step) -> None:
    names = [site.name for site in step.sites]
    for bits in WIDTHS:
        everywhere = dict.fromkeys(names, bits)
        limits = Limits(kept=step.kept_with(everywhere))
        assert widest(step, limits) == everywhere
        assert limits.hold(step, everywhere)
        assert not Limits(kept=step.kept_with(everywhere) - 1).hold(step, everywhere)


def test_a_budget_below_all_plans() -> None:
    step = Step([SavedSite("a: f", 4096, 128, 64, 1, 3)], BITS, [100, 700, 700, 100], 2, 576)
    for limits in (Limits(peak=10), Limits(kept=10)):
        with pytest.raises(KernelError, match=r"budget must be at least .* got 10 B: with 2 bits everywhere"):
            solve(step, {"a: f": dict.fromkeys(WIDTHS, 1.0)}, limits)
        with pytest.raises(KernelError, match="budget must be at least"):
            widest(step, limits)


def test_without_limits_all_stays_whole() -> None:
    step = Step([SavedSite("a: f", 4096, 128, 64, 1, 3)], BITS, [100, 700, 700, 100], 2, 576)
    assert solve(step, {"a: f": dict.fromkeys(WIDTHS, 1.0)}, Limits()).bits == {"a: f": None}


def test_what_exact_gradients_need_as_a_share() -> None:
    step = Step([SavedSite("a: f", 4096, 128, 64, 1, 3)], BITS, [100, 700, 700, 100], 2, 576)
    assert infeasible(step, Limits(kept=10, stock=10000), None).startswith("budget must be at least 0.41, 4.0 KiB kept")
    said = infeasible(step, Limits(kept=10, stock=4096), None)
    assert said == "budget must be left out for a model that exact ways cannot make smaller, got 10 B of 4.0 KiB"
