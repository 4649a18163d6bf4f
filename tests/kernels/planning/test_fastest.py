"""The fastest plan: nothing that users could do with blocks is faster at the same bytes, whatever ways cost."""

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from actfit import KernelError, Plan, compress, make_plan, peak_bytes, saved_bytes
from actfit.kernels.graph.planning import CapturedTask
from actfit.kernels.methods.planned import WIDTHS
from actfit.kernels.planning import planner
from actfit.kernels.planning.batches import Call, call_of
from actfit.kernels.planning.blocks import Blocks, BlockWays, repeated_blocks
from actfit.kernels.planning.budget import Limits
from actfit.kernels.planning.fastest import GAIN, fastest
from actfit.kernels.planning.planner import plan_of
from actfit.kernels.planning.prices import Parts, Prices, measure, usual
from actfit.kernels.planning.safety import squared_bound
from actfit.kernels.planning.sensitivity import Bits
from actfit.kernels.planning.solve import GAP, TIE, InfeasibleError, with_fewest_codes
from actfit.kernels.planning.step import SavedSite, Step
from actfit.kernels.planning.task import Task
from actfit.kernels.planning.values import Bytes, Errors
from tests.kernels.planning.nets import Attending, gradient, mlp, text

ELEMENTS = 800  # of the tensor of each block that can have codes
BITS = 4  # in a step that is observed


def erring(error: float, *given: object) -> AbstractContextManager[Any]:
    """In place of `Task.checking`: gradients that err by as much with any codes."""
    return nullcontext(SimpleNamespace(error=lambda bits: error))


@dataclass(frozen=True)
class Alike(Task):
    """Blocks that are alike: bytes as given for each way, peaks at the end of forward; errors fall by 4 a bit."""

    count: int = 1
    as_stock: int = 0  # bytes of a block that runs as stock
    beside: int = 0  # bytes of one that is captured, beside the tensor that can have codes
    as_input: int = 0  # bytes of one that is recomputed

    @property
    def blocks(self) -> Blocks:
        return [f"{number}" for number in range(self.count)]

    def without_codes(self, blocks: Blocks) -> tuple[Bytes, int]:
        return Bytes(self.count * self.as_stock, self.count * self.as_stock), 0

    def _observed(self, ways: BlockWays, whole: Set[str] = frozenset()) -> Step:
        captured = [name for name in self.blocks if name not in (*ways.recomputed, *ways.unchanged)]
        sites = [SavedSite(f"{name}: f", 4 * ELEMENTS, ELEMENTS // 8, 0, 0, 1) for name in captured]
        rest = len(ways.recomputed) * self.as_input + len(ways.unchanged) * self.as_stock + len(captured) * self.beside
        saved = rest + sum(site.bytes(None if ways.exact else BITS) for site in sites)
        return Step(() if ways.exact else sites, BITS, (saved,), 1, saved)

    def errors(self, blocks: Blocks, step: Step) -> dict[str, dict[int, float]]:
        return {site.name: {bits: 4.0**-bits for bits in WIDTHS} for site in step.sites}

    def checking(self, blocks: Blocks, names: Sequence[str] | Bits) -> AbstractContextManager[Any]:
        return erring(0.0)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_nothing_that_fits_is_faster(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 7))
    beside, as_input = data.draw(st.integers(0, 2000)), data.draw(st.integers(1, 2000))
    as_stock = beside + 4 * ELEMENTS + data.draw(st.integers(0, 4000))
    task = Alike(nn.Linear(1, 1), Call((), {}), count=count, as_stock=as_stock, beside=beside, as_input=as_input)
    captured, coded, again = (data.draw(st.floats(0, 1)) for _ in range(3))
    prices = Prices(captured, coded, again, dict.fromkeys(task.blocks, 1 / count))
    bound = data.draw(st.sampled_from([0.0, *(count * 4.0**-bits for bits in (2, 4, 6, 8))]))
    limit = Limits(peak=int(data.draw(st.floats(0.05, 1)) * task.stock.peak))
    rivals = dict(every(task, prices, limit, bound))
    try:
        found = fastest(task, limit, bound, lambda blocks: prices)
    except InfeasibleError:
        assert not rivals
        return
    # A mixture is observed only where it is estimated to gain; codes are the fewest but for the solver's gap and ties.
    assert found.time <= min(rivals.values()) + GAIN + coded * (GAP + TIE) * 1.1
    assert limit.hold(found.step, found.solution.bits)


def every(task: Task, prices: Prices, limit: Limits, bound: float) -> Iterator[tuple[BlockWays, float]]:
    """The times of all mixtures within the limit, with the fewest codes."""
    names = tuple(task.blocks)
    for again in range(len(names) + 1):
        for stock in range(len(names) + 1 - again):
            ways = BlockWays(names[:again], names[len(names) - stock :], not bound)
            step = task.step(ways)
            bits: Mapping[str, int | None] = {}
            if bound and step.sites:
                solution = with_fewest_codes(step, task.errors((), step), limit, bound)
                if solution is None:
                    continue
                bits = solution.bits
            if limit.hold(step, bits):
                yield (
                    ways,
                    prices.time(parts(task, ways), sum(width is not None for width in bits.values()) / len(names)),
                )


def parts(task: Task, ways: BlockWays) -> Parts:
    """The shares of blocks that are alike."""
    again, stock = (len(names) / len(task.blocks) for names in (ways.recomputed, ways.unchanged))
    return Parts(1 - again - stock, again, stock)


@pytest.fixture(scope="module")
def deep() -> CapturedTask:
    """Four blocks of attention."""
    model, inputs = text(4)
    return CapturedTask(model, call_of(inputs))


@pytest.mark.slow
def test_without_an_error_nothing_is_quantized(deep: CapturedTask) -> None:
    """Blocks run again, are captured or stay as they are; the gradient is that of stock, bit for bit."""
    model, inputs = text(4)
    exact, now = gradient(model, inputs), saved_bytes(model, *inputs).total
    plan = plan_of(deep, 0.4, max_gradient_error=0)
    assert (plan.goal, plan.sites, plan.errors.measured) == ("time", (), 0.0)
    assert plan.recomputed
    assert plan.time is not None
    assert "error of the gradient: 0, as nothing is quantized" in str(plan)
    handle = compress(model, plan=plan)
    assert all(map(torch.equal, gradient(model, inputs), exact))
    assert saved_bytes(model, *inputs).total <= plan.planned.kept <= 0.4 * now
    handle.remove()
    assert saved_bytes(model, *inputs).total == now


def test_blocks_that_run_again_save_their_inputs_alone(deep: CapturedTask) -> None:
    blocks = tuple(deep.blocks)
    step = deep.step(BlockWays(blocks, exact=True))
    assert step.kept == (len(blocks) - 1) * deep.call.args[0].nbytes  # the first one's is there before


@pytest.mark.slow
def test_a_little_less_leaves_blocks_as_they_are(
    deep: CapturedTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "measure", lambda task, blocks: usual(blocks))
    model, inputs = text(4)
    now = peak_bytes(model, *inputs)
    plan = plan_of(deep, int(0.95 * now), max_gradient_error=0)
    assert plan.unchanged
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    compress(model, plan=again)
    assert peak_bytes(model, *inputs) <= 0.95 * now


@pytest.mark.slow
def test_a_budget_below_what_exact_gradients_need(deep: CapturedTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "measure", lambda task, blocks: usual(blocks))
    with pytest.raises(KernelError, match="exact gradients take as much, with all blocks computed again"):
        plan_of(deep, 0.01, max_gradient_error=0)


@pytest.mark.slow
def test_without_codes_where_they_err_too_much_on_other_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the least error that codes may have: an exact plan fits."""
    monkeypatch.setattr(Task, "checking", partial(erring, 1.0))
    monkeypatch.setattr(planner, "measure", lambda task, blocks: usual(blocks))
    model, (x,) = text(2)
    plan = make_plan(model.bfloat16(), x.bfloat16(), 0.2)
    assert (plan.goal, plan.errors.measured) == ("time", 0.0)


@pytest.mark.slow
def test_a_bound_that_does_not_hold_on_other_samples_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "measure", lambda task, blocks: usual(blocks))
    measured = planner._measured
    monkeypatch.setattr(planner, "_measured", lambda *given: measured(*given)._replace(errors=Errors(0.1, 0.2)))
    with pytest.warns(UserWarning, match=r"max_gradient_error must be at least 0.2 for this budget on other samples"):
        make_plan(*text(1), 0.2, max_gradient_error=0.15)


class Unusual(nn.Module):
    """Changes what it is given, and leaves a block out."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attending() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        for block in self.blocks[:2]:
            x = block(x)
        return x


@pytest.mark.slow
def test_timing_changes_no_inputs_and_finds_blocks_that_are_not_called() -> None:
    torch.manual_seed(0)
    model, x = Unusual(), torch.ones(4, 64, 32)
    prices = measure(CapturedTask(model, call_of(x)), repeated_blocks(model))
    assert torch.equal(x, torch.ones(4, 64, 32))
    assert prices.shares["blocks.2"] == 0


@pytest.mark.slow
def test_a_model_without_blocks_has_a_time_as_well() -> None:
    model, inputs = mlp()
    plan = make_plan(model, inputs, 0.3, max_gradient_error=0.1)
    assert (plan.goal, plan.recomputed, plan.unchanged) == ("time", (), ())
    assert plan.time is not None
    assert isfinite(plan.time)


@pytest.mark.slow
def test_prices_are_measured_and_sum_up(deep: CapturedTask) -> None:
    prices = measure(deep, tuple(deep.blocks))
    assert prices.measured
    assert sum(prices.shares.values()) == pytest.approx(1.0)
    assert prices.again > 0
    assert all(weight.grad is None for weight in deep.model.parameters())
    assert not any("forward" in vars(module) for module in deep.model.modules())


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [(torch.float32, 0.0), (torch.bfloat16, (4 * 2.0**-7) ** 2), (torch.float16, (4 * 2.0**-10) ** 2)],
)
def test_the_bound_of_a_dtype(dtype: torch.dtype, bound: float) -> None:
    model = nn.Linear(4, 4)
    assert squared_bound("dtype", model.to(dtype)) == bound
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert squared_bound("dtype", model.float()) == (4 * 2.0**-7) ** 2
