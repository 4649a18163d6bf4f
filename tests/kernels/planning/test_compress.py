"""compress with a budget, and with a plan."""

import pytest
import torch
from torch import Tensor, nn

from actfit import KernelError, compress, front, gradient_error, make_plan, saved_bytes
from actfit.kernels.graph.planning import CapturedTask
from actfit.kernels.memory.step import peak_bytes
from actfit.kernels.planning.batches import Call, call_of, part
from actfit.kernels.planning.make import task_of
from actfit.kernels.planning.planner import plan_of
from tests.kernels.planning.nets import NETS, gradient, text


@pytest.mark.slow
@pytest.mark.parametrize(("name", "share"), [("text", 0.3), ("image", 0.15)])
def test_a_share_of_what_is_kept(name: str, share: float) -> None:
    model, inputs = NETS[name]()
    before = saved_bytes(model, *inputs)
    handle = compress(model, fit=share, inputs=inputs)
    assert handle.plan is not None
    assert saved_bytes(model, *inputs).total <= share * before.total
    assert handle.plan.errors.measured <= handle.plan.uniform_error
    gradient(model, inputs)
    handle.remove()
    assert saved_bytes(model, *inputs) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text", "image"])
def test_the_peak_is_within_the_budget(name: str) -> None:
    """Half-way between the least and stock's."""
    model, inputs = NETS[name]()
    task, stock = CapturedTask(model, call_of(inputs)), peak_bytes(model, *inputs)
    budget = (plan_of(task, 0.15, goal="error").planned.peak + stock) // 2
    plan = plan_of(task, budget)
    assert plan.stock.peak == stock
    compress(model, plan=plan)
    assert peak_bytes(model, *inputs) <= plan.planned.peak <= budget


def test_a_compressed_model_is_not_planned() -> None:
    model, inputs = text(1)
    handle = compress(model)
    for make in (make_plan, front):
        with pytest.raises(
            KernelError, match=r"^model must not be compressed already, .*; call remove\(\) of its handle"
        ):
            make(model, inputs, **({"budget": 0.5} if make is make_plan else {}))
    handle.remove()
    assert make_plan(model, inputs, 0.99).stock.kept == saved_bytes(model, *inputs).total


def test_a_budget_that_the_model_is_within() -> None:
    model, inputs = text(1)
    handle = compress(model, fit="1GiB", inputs=inputs)
    assert handle.plan is not None
    assert not handle.plan.needed
    assert "needs no plan" in str(handle)
    assert not handle.names


@pytest.mark.slow
def test_a_plan_is_taken_at_once() -> None:
    model, inputs = text(1)
    plan = make_plan(model, inputs, 0.2, goal="error")
    handle = compress(model, plan=plan)
    assert handle.plan == plan
    assert "as planned" in str(handle)
    assert saved_bytes(model, *inputs).total == plan.planned.kept
    with pytest.raises(KernelError, match="plan must be of this model"):
        compress(NETS["mlp"]()[0], plan=plan)


@pytest.mark.slow
def test_modes_random_numbers_and_buffers_stay() -> None:
    model, inputs = NETS["image"]()
    model.eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match="model must be in training mode"):
        make_plan(model, inputs, 0.3, goal="error")
    drawn = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(4))
    assert not model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


class Codebook(nn.Module):
    """Moves its entries towards what it is given, in each call, as VQ-VAEs do."""

    def __init__(self, by_data: bool) -> None:
        super().__init__()
        self.entries, self.by_data = nn.Parameter(torch.randn(16, 64), requires_grad=False), by_data
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layers(x) + self.entries[(x @ self.entries.t()).argmax(-1)]
        if self.by_data:
            self.entries.data.lerp_(x.detach().mean(0), 0.1)
        else:
            with torch.no_grad():
                self.entries.mul_(0.9).add_(0.1 * x.mean(0))
        return made


@pytest.mark.parametrize("by_data", [False, True])
def test_weights_that_forward_writes_to_stay(by_data: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Codebook(by_data) for _ in range(2)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = torch.randn(128, 64)
    saved_bytes(model, batch, fake=False)
    make_plan(model, batch, 0.5)
    compress(model, bits=8, inputs=batch)
    gradient_error(model, lambda model: model(batch).square().mean())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class InPlace(nn.Module):
    """Changes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        for layer in self.layers:
            x = layer(x).sigmoid()
        return x


def test_the_batch_stays() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output - target.add_(1)).square().mean()

    model, batch = InPlace(), (torch.randn(128, 64), torch.randn(128, 64))
    before = [x.clone() for x in batch]
    with task_of(model, call_of(batch[0]), loss, batch[1]).checking((), ()):
        pass
    compress(model, bits=4, inputs=batch[0], loss=loss, targets=batch[1])
    assert all(map(torch.equal, batch, before))


@pytest.mark.slow
def test_a_model_that_stands_in() -> None:
    model, inputs = text(1)
    with torch.device("meta"):
        large, _ = text(1)
    given = torch.randn(4, 64, 32, device="meta")
    with pytest.raises(KernelError, match="stand_in=") as caught:
        make_plan(large, given, 0.2, goal="error")
    assert "fake tensors" in str(caught.value)
    plan = make_plan(large, given, 0.2, stand_in=(model, inputs), goal="error")
    assert "stands in" in plan.measured_on
    assert "stands in" in str(plan)
    compress(model, plan=plan)


def test_samples_to_plan_by_and_samples_to_check_by() -> None:
    x, mask = torch.arange(10), torch.ones(10, 3)
    call = Call((x,), {"mask": mask, "flag": True})
    (first, share), (second, _) = part(call, 2), part(call, 2, check=True)
    assert share == 0.2
    assert first.args[0].tolist() == [0, 1]
    assert second.args[0].tolist() == [2, 3]
    assert first.kwargs["mask"].shape == (2, 3)
    assert first.kwargs["flag"] is True
    for call in (Call((x, torch.ones(3)), {}), Call((torch.ones(1, 3),), {}), Call((torch.ones(()),), {})):
        assert part(call, 2) == part(call, 2, check=True) == (call, 1.0)


@pytest.mark.slow
def test_a_loss_with_labels_of_the_whole_batch() -> None:
    """It does not take the output of two samples: all are taken."""
    model, inputs = NETS["mlp"]()
    labels = torch.randint(64, (128,))
    plan = make_plan(model, inputs, 0.2, loss=lambda output: nn.functional.cross_entropy(output, labels), goal="error")
    assert plan.errors.measured > 0


@pytest.mark.slow
def test_a_loss_with_targets() -> None:
    """They are cut to samples with the inputs; what the loss takes counts."""
    model, inputs = NETS["mlp"]()
    labels, seen = torch.randint(64, (128,)), set()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.add((len(output), len(target)))
        return nn.functional.cross_entropy(output, target)

    without = CapturedTask(model, call_of(inputs)).stock
    handle = compress(model, fit=0.2, inputs=inputs[0], loss=loss, targets=labels)
    assert seen == {(128, 128), (2, 2)}
    assert handle.plan is not None
    assert handle.plan.stock.kept == without.kept
    assert handle.plan.stock.peak != without.peak


@pytest.mark.slow
def test_gradients_that_are_no_numbers() -> None:
    model, _ = NETS["mlp"]()
    with pytest.raises(KernelError, match="the gradient must be finite"):
        make_plan(model, torch.full((128, 64), float("nan")), 0.2, goal="error")


@pytest.mark.slow
def test_a_plan_of_what_does_nothing_yet() -> None:
    """Codes there do no harm now; but all of the budget is used, not the narrowest codes."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale = NETS["mlp"]()[0], nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.scale * self.inner(x)

    plan = make_plan(Scaled(), torch.randn(128, 64), 0.25, goal="error")
    assert all(site.bits is None or site.bits > 3 for site in plan.sites)


@pytest.mark.slow
def test_codes_that_are_worse_than_uniform_ones_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of sensitivities that say the opposite of what is."""
    model, inputs = text(1)
    monkeypatch.setattr(
        "actfit.kernels.planning.task.sensitivities",
        lambda gradients, names, passes: {
            name: {bits: 2.0**-bits * 1e6 if "silu" in name else 2.0**-bits for bits in range(2, 9)} for name in names
        },
    )
    plan = make_plan(model, inputs, 0.15, goal="error")
    assert plan.errors.measured <= plan.uniform_error


@pytest.mark.slow
def test_a_part_of_a_storage_that_stays_whole() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(64, 64), nn.Parameter(torch.ones(64))

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x) + self.scale
            return h[:128].sin().cos()

    model, inputs = Part(), (torch.randn(1024, 64),)
    handle = compress(model, fit=0.9, inputs=inputs)
    assert handle.plan is not None
    assert saved_bytes(model, *inputs).total <= handle.plan.planned.kept or not handle.plan.needed
