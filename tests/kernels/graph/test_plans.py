"""Plans for captured models: bytes and errors that hold, and plans that are refused."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import Plan, compress, make_plan
from actfit.kernels.errors import KernelError
from actfit.kernels.graph.partition import Partitioner
from actfit.kernels.memory import saved_bytes
from actfit.kernels.methods import every_tensor
from tests.kernels.graph.nets import assert_same, batch, net

ROWS = 512


@pytest.fixture(autouse=True)
def _usual_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans measure on few samples, whose tensors count as large in proportion to the batch."""
    monkeypatch.setattr(Partitioner, "smallest", every_tensor.SMALLEST)


@pytest.fixture(scope="module")
def made() -> tuple[nn.Module, Tensor, Plan]:
    """A model, its batch, and a plan in which some tensors are whole, some in few bits."""
    model, x = net(layers=3), batch(ROWS)
    torch.manual_seed(0)
    return model, x, make_plan(model, x, 0.25, goal="error")


def gradient_of(model: nn.Module, x: Tensor) -> Tensor:
    torch.manual_seed(2)
    y = model(x)
    (y * torch.randn_like(y)).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_a_plan_keeps_its_promises(made: tuple[nn.Module, Tensor, Plan]) -> None:
    model, x, plan = made
    stock, ours = copy.deepcopy(model), copy.deepcopy(model)
    handle = compress(ours, plan=plan)
    exact, approximate = gradient_of(stock, x), gradient_of(ours, x)
    error = float((approximate - exact).norm() / exact.norm())
    # Of another random function than the plan was checked with; three times is what the safety net allows.
    assert 0 < error < 3 * plan.errors.measured
    # A norm's 1/std of each row crosses where what it normalises has codes; the plan counts it for all.
    assert 0 <= plan.planned.kept - saved_bytes(ours, x).total <= 3 * ROWS * 4
    assert plan.planned.kept <= 0.25 * plan.stock.kept
    assert plan.planned.peak is not None
    assert plan.stock.peak is not None
    assert plan.planned.peak < plan.stock.peak
    crossing = {row.form for graph in handle.report.graphs for row in graph.crossings if row.site}
    assert {site.bits for site in plan.sites if site.bits} == {int(form.split()[0]) for form in crossing - {"whole"}}


def test_a_plan_without_codes_is_exact() -> None:
    model, x = net(layers=3), batch(ROWS)
    ours = copy.deepcopy(model)
    compress(ours, fit=0.6, inputs=x)
    gradient_of(model, x)
    gradient_of(ours, x)
    assert_same(ours, model)
    assert saved_bytes(ours, x).total < 0.6 * saved_bytes(model, x).total


def test_blocks_that_backward_runs_again() -> None:
    model, x = net(layers=3), batch(ROWS)
    bound = 5e-3
    plan = make_plan(model, x, 0.13, max_gradient_error=bound, goal="error")
    assert plan.recomputed
    stock, ours = copy.deepcopy(model), copy.deepcopy(model)
    compress(ours, plan=plan)
    exact = gradient_of(stock, x)
    assert float((gradient_of(ours, x) - exact).norm() / exact.norm()) <= 3 * bound  # what the safety net allows
    assert (plan.work or 0) > 1


def test_a_plan_can_be_saved(made: tuple[nn.Module, Tensor, Plan], tmp_path: Path) -> None:
    model, x, plan = made
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    first, second = copy.deepcopy(model), copy.deepcopy(model)
    compress(first, plan=plan)
    compress(second, plan=tmp_path / "plan.json")
    assert torch.equal(gradient_of(first, x), gradient_of(second, x))


def test_plans_of_other_kinds_and_models_are_refused(made: tuple[nn.Module, Tensor, Plan]) -> None:
    model, _, plan = made
    with pytest.raises(KernelError, match="one of a model with 3 modules"):
        compress(net(layers=4), plan=plan)
    with pytest.raises(KernelError, match="bits and rounding must be left out with plan"):
        compress(copy.deepcopy(model), plan=plan, bits=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fit": 0.5}, "inputs must be given with fit"),
        ({"inputs": torch.ones(2, 64)}, "inputs must go with bits, plan or fit"),
        ({"bits": 4, "targets": 1}, "targets must go with loss"),
        ({"fit": "two", "inputs": torch.ones(2, 64)}, "fit must be bytes"),
        ({"fit": 1, "inputs": torch.ones(2, 64)}, "fit must be .*, got 1; give a share such as 0.4, or bytes such as"),
        ({"fit": "1KiB", "inputs": torch.ones(2, 64)}, "fit must be at least .* at the peak of a step, got 1.0 KiB"),
        ({"fit": 1e-9, "inputs": torch.ones(2, 64)}, "fit must be "),
        ({"fit": 0.5, "inputs": "batch"}, "inputs must be .* a tensor, a tuple of arguments or .*, got 'batch'"),
        (
            {"bits": 8, "inputs": np.ones((2, 64))},
            r"inputs must be .*, got a ndarray of float64, of shape \(2, 64\); torch",
        ),
        ({"fit": "1TB", "inputs": torch.ones(2, 64).double()}, "inputs must be .* got RuntimeError: .*; check names"),
        ({"fit": 0.5, "inputs": {"y": torch.ones(2, 64)}}, "inputs must be .* got TypeError: .* argument 'y'; check"),
        (
            {"fit": 0.5, "inputs": torch.ones(2, 64), "loss": F.mse_loss, "targets": 1},
            "targets must be .* AttributeError: ",
        ),
        ({"chunked_loss": "yes"}, "chunked_loss must be True, False or None, got 'yes'"),
        ({"compiled": 1}, "compiled must be True, False or None, got 1"),
        ({"rounding": "nearest"}, "rounding must go with bits or fit, got 'nearest'"),
        ({"plan": 3}, "plan must be a plan or the path of one"),
        ({"plan": "none.json"}, "plan must be a file that can be read"),
        ({"fit": 0.2, "plan": "x.json"}, "fit must be left out with plan"),
        ({"plan": "x.json", "rounding": "nearest"}, "bits and rounding must be left out with plan"),
        ({"fit": 0.2, "inputs": torch.ones(2, 64), "loss": 3}, "loss must be a function"),
    ],
)
def test_arguments(options: dict[str, object], message: str) -> None:
    model = net()
    with pytest.raises(KernelError, match=message):
        compress(model, **options)  # type: ignore[arg-type]
    assert model.training
    assert not any("forward" in vars(module) for module in model.modules())
