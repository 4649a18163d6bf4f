"""Budgets of a whole training: what is predicted, beside what the allocator gives out in steps with an optimizer."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from actfit import KernelError, Plan, compress, front, make_plan, peak_bytes
from actfit.kernels.planning import planner
from actfit.kernels.planning.budget import Goal, check
from actfit.kernels.planning.prices import usual
from actfit.kernels.planning.training import held_by
from benchmarks.compression.meter import measured
from tests.kernels.planning.nets import mlp

WIDTH = 256
NUMBERS = 64  # bytes of numbers such as the loss, which are there in the optimizer's step
ROWS, FEW = 2048, 16  # with many, activations are the most; with few, the optimizer's step


def net(rows: int = ROWS) -> tuple[nn.Module, Tensor]:
    """Blocks whose weights, gradients and activations are all a good part of training."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(6)]
    return nn.Sequential(*blocks), torch.randn(rows, WIDTH)


def square(y: Tensor) -> Tensor:
    return y.square().mean()


def adamw(model: nn.Module) -> optim.Optimizer:
    return optim.AdamW(model.parameters())


def momentum(model: nn.Module) -> optim.Optimizer:
    return optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def allocated(model: nn.Module, x: Tensor, optimizer: optim.Optimizer, accumulates: bool = False) -> int:
    """The bytes at the peak of a step after the first: those that are there, and what the allocator gives out."""
    square(model(x)).backward()
    optimizer.step()
    if not accumulates:
        optimizer.zero_grad()

    def loss() -> Any:
        output = model(x)
        value = square(output)

        def backward(_: object) -> None:
            nonlocal output
            value.backward()
            del output
            optimizer.step()

        return SimpleNamespace(backward=backward)

    state = [part for states in optimizer.state.values() for part in states.values()]
    there = [*model.parameters(), x, *state, *(w.grad for w in model.parameters() if w.grad is not None)]
    return sum(each.nbytes for each in there) + measured(loss, torch.device("cpu")).peak


@pytest.mark.slow
@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.parametrize("made", [adamw, momentum])
@pytest.mark.parametrize("rows", [ROWS, FEW])
def test_the_bytes_of_a_training_are_the_allocators(
    rows: int, made: Callable[[nn.Module], optim.Optimizer], accumulates: bool
) -> None:
    model, x = net(rows)
    given: dict[str, Any] = {"loss": square, "optimizer": made(model), "accumulates": accumulates}
    stock = make_plan(model, x, "1TB", **given).stock.peak
    assert stock == pytest.approx(allocated(model, x, made(model), accumulates), abs=NUMBERS)


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "goal"), [("100MB", "time"), ("85MB", "error")])
def test_a_training_stays_in_its_budget(budget: str, goal: Goal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 165 MB; weights, gradients and the optimizer's state are 50 MB of it."""
    monkeypatch.setattr(planner, "measure", lambda task, blocks: usual(blocks))
    model, x = net()
    plan = make_plan(model, x, budget, loss=square, optimizer="adamw", goal=goal)
    handle = compress(model, plan=plan)
    assert plan.optimizer == "AdamW"
    assert "; peak of training with AdamW 157.1 MiB before, " in str(handle)
    real = allocated(model, x, adamw(model))
    # Blocks that run again keep the state of the CPU's generator of random numbers, which is no memory of a GPU.
    numbers = NUMBERS + len(plan.recomputed) * torch.get_rng_state().nbytes
    assert real <= plan.planned.peak + numbers <= check(budget) + numbers
    assert plan.planned.peak <= 1.05 * real  # codes have pieces, which Step.peak_with bounds from above
    assert Plan.from_json(plan.to_json()) == plan


def test_without_an_optimizer_peaks_are_over_what_is_there() -> None:
    model, inputs = mlp()
    with_one, without = (make_plan(model, inputs, "1TB", **given) for given in ({"optimizer": "sgd"}, {}))
    assert without.optimizer == ""
    assert without.stock.peak == peak_bytes(model, *inputs)
    gradients = weights = sum(weight.nbytes for weight in model.parameters())
    # Not all gradients are there at the peak.
    there = weights + inputs[0].nbytes
    assert there <= with_one.stock.peak - without.stock.peak < there + gradients
    assert with_one.stock.kept == without.stock.kept
    [stock, *_] = front(model, inputs, optimizer="sgd", by="peak", count=2).named
    assert stock.bytes == with_one.stock


@pytest.mark.parametrize("kind", [optim.AdamW, optim.Adam, optim.RMSprop, optim.Adagrad, optim.Adafactor, optim.NAdam])
def test_state_is_what_the_optimizer_will_have(kind: type[optim.Optimizer]) -> None:
    """Before its first step as after it; but Adafactor's, which needs numbers, is known only then."""
    model, inputs = mlp()
    optimizer = kind(model.parameters())
    before = None if kind is optim.Adafactor else held_by(model, inputs, optimizer, False)
    square(model(*inputs)).backward()
    optimizer.step()
    state = sum(part.nbytes for states in optimizer.state.values() for part in states.values())
    after = held_by(model, inputs, optimizer, False)
    weights = sum(weight.nbytes for weight in model.parameters())
    assert after.before == weights + inputs[0].nbytes + state
    assert before in (None, after)


def test_what_is_trained_counts() -> None:
    """Frozen weights have no state, and no gradients; tied ones are there once; what is outside of the model counts."""
    model, inputs = mlp()
    first, outside = model[0], nn.Linear(64, 64, bias=False)
    model.requires_grad_(False)
    first.requires_grad_()
    weights = sum(weight.nbytes for weight in model.parameters()) + inputs[0].nbytes
    trained = first.weight.nbytes + first.bias.nbytes
    steps = 4 * 2  # a number for each weight
    assert held_by(model, inputs, "adam", False).before == weights + 2 * trained + steps
    assert held_by(model, inputs, "adam", True).before == weights + 3 * trained + steps
    wide = optim.SGD([*first.parameters(), *outside.parameters()], lr=0.1)
    assert held_by(model, inputs, wide, False).before == weights + 2 * outside.weight.nbytes
    tied = nn.Sequential(first, nn.Linear(64, 128))
    tied[1].weight = first.weight
    assert held_by(tied, inputs, "sgd", False).before == trained + 128 * 4 + inputs[0].nbytes


class OnNumbers(optim.Optimizer):
    """An optimizer that reads numbers, as those that bring own kernels do."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self) -> None:  # type: ignore[override]
        self.param_groups[0]["params"][0].sum().item()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": "lion"}, "optimizer must be one of adamw, .*, or a torch.optim.Optimizer, got 'lion'$"),
        ({"optimizer": "AdamW"}, "optimizer must be one of .*, got 'AdamW'; did you mean adamw.$"),
        ({"optimizer": optim.AdamW}, "optimizer must be one of .*, got <class .*; did you mean adamw.$"),
        ({"optimizer": "adamw", "fit": 0.5}, "fit must be bytes of a whole training with optimizer, .*got 0.5"),
        ({"optimizer": "adamw", "fit": None}, "optimizer must go with fit, .*, got no fit"),
        (
            {"optimizer": "adamw", "fit": "800KB"},
            r"fit must be at least 873.. KiB, got 781.2 KiB: weights, gradients, .*AdamW",
        ),
        ({"optimizer": adamw(mlp()[0])}, "optimizer must have parameters of the model, got AdamW of others"),
        (
            {"optimizer": OnNumbers},
            "optimizer must run on tensors without memory, or have taken a step, got a OnNumbers",
        ),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    model, inputs = mlp()
    if given["optimizer"] is OnNumbers:
        given = {"optimizer": OnNumbers(model.parameters())}
    with pytest.raises(KernelError, match=message) as caught:
        compress(model, **{"fit": "3MiB", "inputs": inputs} | given)
    assert "\n" not in str(caught.value)


def test_an_optimizer_of_some_of_the_weights_is_told() -> None:
    model, inputs = mlp()
    some = optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.warns(
        UserWarning, match=r"optimizer must have all weights .* got one of SGD without 10 of them"
    ) as told:
        compress(model, fit="1TB", inputs=inputs, optimizer=some)
    assert [warning.filename for warning in told] == [__file__]


def test_a_fused_optimizer_by_name() -> None:
    model, inputs = mlp()
    fused, plain = (held_by(model, inputs, name, False) for name in ("adamw-fused", "adamw"))
    assert (fused.before, fused.name) == (plain.before, plain.name)
    assert fused.update < plain.update


def test_nothing_to_train_is_refused() -> None:
    model, inputs = mlp()
    with pytest.raises(KernelError, match="optimizer must be left out for a model without parameters that want"):
        held_by(model.requires_grad_(False), inputs, "adamw", False)
