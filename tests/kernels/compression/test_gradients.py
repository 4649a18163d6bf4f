"""The error of a compiled model's gradient, compared with eager mode."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from actfit import KernelError, gradient_error
from tests.kernels.compression import models
from tests.kernels.compression.graphs import compiled, error, gradients, partitioner

pytestmark = pytest.mark.usefixtures("small_and_seeded")


class Net(nn.Module):
    """A class of its own: torch does not compile an nn.Sequential in place."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = models.mlp()
        self.dropout = nn.Dropout(dropout)
        self.bias = nn.Parameter(torch.zeros(32))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.dropout(self.layers(x)) + self.bias
        return y


def square(x: Tensor) -> Callable[[Any], Tensor]:
    """A loss on a batch."""
    return lambda model: model(x).square().mean()


@pytest.mark.parametrize("bits", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_the_error_is_that_of_the_gradient(bits: int) -> None:
    model, x = models.mlp(), torch.randn(64, 32)
    run = compiled(model, partitioner(bits=bits))
    measured = gradient_error(run, lambda parameter: (parameter(x) * torch.linspace(-1, 1, 64 * 32).view(64, 32)).sum())
    got, expected = gradients(model, run, x), gradients(model, model, x)
    assert measured.error == pytest.approx(error(got, expected), rel=1e-6)
    names = [name for name, _ in model.named_parameters()]
    by_name = {parameter.name: parameter.error for parameter in measured.parameters}
    assert by_name == {
        name: pytest.approx(error([a], [b]), rel=1e-6) for name, a, b in zip(names, got, expected, strict=True)
    }


def test_nothing_is_changed() -> None:
    """Nor is anything compiled again: not by the first call, nor by the second, nor by further training."""
    model, x, cut = nn.Sequential(nn.BatchNorm1d(32), models.mlp()), torch.randn(64, 32), partitioner()
    run = compiled(model, cut)
    square(x)(run).backward()
    steps: list[Tensor] = []
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(steps.append)
    held = [weight.grad for weight in model.parameters()]
    state = [*model.state_dict().values(), *(tensor for tensor in held if tensor is not None)]
    values, random = [tensor.clone() for tensor in state], torch.get_rng_state()
    first, again = (gradient_error(run, square(x)) for _ in range(2))
    assert first == again
    assert 0 < first.error < 0.5
    assert all(weight.grad is tensor for weight, tensor in zip(model.parameters(), held, strict=True))
    assert all(map(torch.equal, [*model.state_dict().values(), *state[-len(held) :]], values))
    assert torch.equal(torch.get_rng_state(), random)
    assert steps == []
    square(x)(run).backward()
    assert len(cut.graphs) == 1


def test_parameters_without_a_gradient() -> None:
    """Frozen and unused parameters are left out; a gradient of 0 has no error."""
    net, x = Net(), torch.randn(64, 32)
    net.layers[0].weight.requires_grad_(requires_grad=False)
    net.unused = nn.Parameter(torch.zeros(3))
    measured = gradient_error(compiled(net, partitioner()), lambda model: (model(x) - model(x).mean(0)).sum() * 0)
    assert measured.error == 0
    assert {(parameter.error, parameter.share) for parameter in measured.parameters} == {(0, 0)}
    assert {"layers.0.weight", "unused"}.isdisjoint(parameter.name for parameter in measured.parameters)


def test_random_numbers_that_compiled_code_draws_otherwise() -> None:
    run, x = compiled(Net(dropout=0.5), partitioner()), torch.randn(64, 32)
    with pytest.raises(KernelError, match="loss must draw no random numbers"):
        gradient_error(run, square(x))
    run.eval()
    assert gradient_error(run, square(x)).error > 0
    with pytest.raises(KernelError, match="draw noise before"):
        gradient_error(run, lambda model: model(torch.randn(64, 32)).sum())


WRONG: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "a number": (lambda model: 1.0, "one number, got 1.0"),
    "several numbers": (lambda model: model(torch.ones(2, 32)), "one number, got a Tensor .* shape \\(2, 32\\)"),
    "an integer": (lambda model: torch.tensor(1), "must return a floating-point tensor"),
    "no parameter": (lambda model: torch.ones((), requires_grad=True) * 2, "must depend on parameters"),
    "no gradient": (lambda model: model(torch.ones(2, 32)).sum().detach(), "must depend on parameters"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_losses(wrong: str) -> None:
    loss, message = WRONG[wrong]
    with pytest.raises(KernelError, match=message):
        gradient_error(compiled(Net(), partitioner()), loss)


def test_what_has_no_gradient_to_compare() -> None:
    with pytest.raises(KernelError, match="which has parameters"):
        gradient_error(compiled(torch.sin, partitioner()), square(torch.ones(2, 32)))
    with pytest.raises(KernelError, match="model must be what compress changed"):
        gradient_error(Net(), square(torch.ones(2, 32)))


def test_models_of_several_processes_are_refused() -> None:
    wrapper = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper.module = Net()
    with pytest.raises(KernelError, match="got DistributedDataParallel in it"):
        gradient_error(compiled(wrapper, partitioner()), square(torch.ones(2, 32)))
