"""The error of the gradient of a model that `compress` changed, or that has activations of ours."""

from collections.abc import Callable
from itertools import chain

import pytest
import torch
from torch import Tensor, nn

from actfit import KernelError, compress, gradient_error
from actfit.nn import GELU
from tests.kernels.planning.nets import gradient, text


def squared_sum(model: nn.Module) -> Tensor:
    """A loss on a batch of four samples."""
    result: Tensor = model(torch.linspace(-1, 1, 4 * 64 * 32).view(4, 64, 32)).square().mean()
    return result


@pytest.mark.parametrize("bits", [4, 8])
def test_the_error_is_that_of_the_gradient(bits: int) -> None:
    model, (x,) = text(1)
    weights = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    exact = gradient(model, (x,), weights)
    compress(model, bits=bits)
    got = gradient(model, (x,), weights)
    measured = gradient_error(model, lambda model: (model(x) * weights).sum())
    off, whole = (torch.cat([part.flatten() for part in parts]).double() for parts in (got, exact))
    assert measured.error == pytest.approx(float((off - whole).norm() / whole.norm()), rel=1e-6)
    assert 0 < measured.error < 0.2
    assert {parameter.name for parameter in measured.parameters} == {name for name, _ in model.named_parameters()}


WAYS: dict[str, Callable[[nn.Sequential], object]] = {
    "bits": lambda model: compress(model, bits=3),
    "a budget": lambda model: compress(model, fit=0.1, inputs=torch.randn(4, 64, 32)),
    "a policy": lambda model: compress(model, policy="fewbit-2"),
    "a module": lambda model: model.__setitem__(1, GELU(method="fewbit", bits=2)),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_saving_less(way: str) -> None:
    """The exact gradient is that of the model before, and nothing is changed."""
    torch.manual_seed(0)
    layers = [(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32)) for _ in range(4)]
    model = nn.Sequential(*chain.from_iterable(layers))  # so deep that a plan lowers the peak
    WAYS[way](model)
    forwards = [vars(module).get("forward") for module in model.modules()]
    text = str(model)
    first, again = gradient_error(model, squared_sum), gradient_error(model, squared_sum)
    assert first == again
    assert 1e-4 < first.error < 1
    assert [vars(module).get("forward") for module in model.modules()] == forwards
    assert str(model) == text


def test_dropout_drops_the_same_elements() -> None:
    model, _ = text(1, dropout=0.5)
    compress(model, bits=8, rounding="stochastic")
    state = torch.get_rng_state()
    assert 0 < gradient_error(model, squared_sum).error < 0.05
    assert torch.equal(torch.get_rng_state(), state)


def test_buffers_and_gradients_stay() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(64), nn.GELU())
    compress(model, bits=4)
    squared_sum(model).backward()
    before = [*(weight.grad for weight in model.parameters()), *(buffer.clone() for buffer in model.buffers())]
    values = [tensor.clone() for tensor in before]
    assert gradient_error(model, squared_sum).error > 0
    after = [*(weight.grad for weight in model.parameters()), *model.buffers()]
    assert all(map(torch.equal, after, values))
    assert all(a is b for a, b in zip(after, before[: len(list(model.parameters()))], strict=False))


def test_a_model_that_was_not_compressed_is_refused() -> None:
    model, _ = text(1)
    with pytest.raises(KernelError, match=r"model must be what compress changed, .* got a Sequential whose gradient"):
        gradient_error(model, squared_sum)
    handle = compress(model, bits=4)
    assert gradient_error(model, squared_sum).error > 0
    with pytest.raises(KernelError, match="loss must be a function of the model that gives its loss on a batch, got 3"):
        gradient_error(model, 3)
    handle.remove()
    with pytest.raises(KernelError, match="model must be what compress changed"):
        gradient_error(model, squared_sum)
