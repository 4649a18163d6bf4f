"""What the callbacks share: arguments, the first batch of training, and the line that tells of it."""

from typing import Any

import pytest
import torch
from torch import nn

from actfit import make_plan
from actfit.integrations.core import Compression, at_first_step, is_sharded
from actfit.kernels.errors import KernelError
from actfit.kernels.planning.batches import Call

NOTHING = dict.fromkeys(("bits", "rounding", "plan", "policy", "chunked_loss", "compiled", "fit")) | {
    "optimizer": False
}


def compression(**options: Any) -> Compression:
    return Compression(**NOTHING | options)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 9}, "bits must be a whole number from 2 to 8, got 9"),
        ({"bits": 8, "fit": 0.5}, "bits must be left out with fit, which chooses them for each tensor, got 8"),
        ({"bits": 8, "plan": "plan.json"}, "bits and rounding must be left out with plan"),
        ({"fit": "much"}, "fit must be bytes at the peak of a step"),
        ({"fit": 0.5, "optimizer": True}, "fit must be bytes of a whole training with optimizer"),
        ({"bits": 8, "optimizer": True}, "optimizer must go with fit"),
        ({"fit": "1GB", "optimizer": "lion"}, "optimizer must be one of adamw, adam, sgd"),
        ({"fit": 0.5, "chunked_loss": True}, "chunked_loss must be left out with a plan"),
        ({"plan": "none.json"}, "plan must be a file that can be read, got none.json"),
        ({"policy": "none"}, "policy must be one of"),
        ({"bits": 8, "policy": "invact"}, "bits must be None with policy='invact', got 8"),
    ],
)
def test_arguments_are_refused_before_there_is_a_model(options: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError, match=message) as caught:
        compression(**options)
    assert "\n" not in str(caught.value)


def test_a_plan_of_another_budget_is_not_taken_up() -> None:
    plan = make_plan(net(), torch.randn(64, 64), 0.5, max_gradient_error=0)
    again = compression(fit=0.5)
    again.take_up(plan)
    assert again.plan == plan
    for other in (compression(fit=0.4), compression(fit="2MiB", optimizer=True)):
        other.take_up(plan)
        assert other.plan is None


def test_a_model_waits_for_its_first_batch_of_training() -> None:
    model, seen = net(), []
    outputs: list[Any] = []
    at_first_step(model, seen.append, outputs.append)
    x = torch.randn(4, 64)
    with torch.no_grad():
        model(x)
    model.eval()(x)
    assert not seen
    first = model.train()(x)
    model(x)
    assert [call.args[0] is x for call in seen] == [output is first for output in outputs] == [True]
    assert "forward" not in vars(model)


def test_the_first_batch_by_names_has_numbers_for_tensors_of_one() -> None:
    class Counted(nn.Module):
        def forward(self, x: Any, *, of: Any) -> Any:
            return x / of

    model, seen = Counted(), []
    at_first_step(model, seen.append, lambda output: None)
    x = torch.randn(4, requires_grad=True)
    model(x, of=torch.tensor(3))
    assert seen == [Call((x,), {"of": 3})]


def test_waiting_is_cancelled_and_an_own_forward_comes_back() -> None:
    model = net()
    own = model.forward = lambda x: x  # as accelerate puts autocast around
    cancel = at_first_step(model, pytest.fail, pytest.fail)
    with pytest.raises(KernelError, match="callbacks must have one ActfitCallback, got a model that one waits for"):
        at_first_step(model, pytest.fail, pytest.fail)
    cancel()
    cancel()
    assert model(7) == 7
    assert vars(model)["forward"] is own


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, ["saved for backward 64.0 KiB, 128.0 KiB before", "gradients stay exact"]),
        ({"bits": 8}, ["saved for backward", "peak of a step", "error of the gradient 0.", "0 before"]),
        ({"policy": "invact"}, ["gradients are approximate; actfit.gradient_error measures by how much"]),
    ],
)
def test_the_first_step_is_compressed_and_told_of(options: dict[str, Any], parts: list[str]) -> None:
    model, started = net(), compression(**options)
    at_first_step(model, lambda inputs: started.start(model, inputs), started.told)
    model(torch.randn(64, 64)).square().mean().backward()
    assert started.handle is not None
    assert len(started.handle.report.graphs) == 1
    assert started.line.startswith("actfit: ")
    assert "\n" not in started.line
    for part in (*parts, "; all without the loss, which the model does not compute"):
        assert part in started.line
    started.stop()
    assert "forward" not in vars(model)


@pytest.mark.parametrize("output", [{"loss": torch.ones(())}, torch.ones(())], ids=str)
def test_a_model_that_computes_its_loss_is_told_of_with_it(output: Any) -> None:
    started = compression()
    started.start(net(), torch.randn(64, 64))
    assert started.told(output) == started.line
    assert "without the loss" not in started.line


def test_a_budget_makes_a_plan() -> None:
    model, started = net(), compression(fit=0.5)
    line = started.start(model, torch.randn(64, 64))
    assert started.plan is not None
    assert line == "actfit: " + "; ".join(str(started.plan).splitlines()[: 2 if started.plan.needed else 1])


def test_a_budget_of_a_whole_training() -> None:
    """By the trainer's optimizer, or by one of a name."""
    plans = []
    for optimizer in (True, "sgd"):
        model, started = net(), compression(fit="1GB", optimizer=optimizer)
        started.start(model, torch.randn(64, 64), torch.optim.AdamW(model.parameters()), accumulates=True)
        assert started.plan is not None
        plans.append(started.plan)
        again = compression(fit="1GB", optimizer=optimizer)
        again.take_up(started.plan)
        assert again.plan == started.plan
    by_adam, by_sgd = plans
    weights = sum(weight.nbytes for weight in net().parameters())
    assert (by_adam.optimizer, by_sgd.optimizer) == ("AdamW", "SGD")
    assert by_adam.stock.peak is not None
    assert by_sgd.stock.peak is not None
    assert by_adam.stock.peak - by_sgd.stock.peak >= 2 * weights
    with pytest.raises(KernelError, match="optimizer must be a name where the trainer has not one optimizer, got True"):
        compression(fit="1GB", optimizer=True).start(net(), torch.randn(64, 64))


def test_a_budget_needs_a_batch() -> None:
    with pytest.raises(KernelError, match=r"^fit must be left out under FSDP.*give plan= its file$"):
        compression(fit=0.5).start(net(), None)


def test_bytes_that_cannot_be_measured_are_said_so() -> None:
    class Reading(nn.Sequential):
        def forward(self, x: Any) -> Any:
            return super().forward(x) if x.sum().item() < 1e9 else x

    line = compression().start(Reading(*net()), torch.randn(64, 64))
    assert line == "actfit: bytes are not measured; gradients stay exact"


def test_a_plain_model_is_not_sharded() -> None:
    assert not is_sharded(net())
