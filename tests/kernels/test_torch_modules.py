"""Modules in common uses: copied, saved, moved to other dtypes, tied, put into transformers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import actfit
from tests.kernels.copies import each_copy
from tests.kernels.saved import each_method

ROOT = Path(__file__).parents[2]


def mlp(options: dict) -> nn.Sequential:
    last = actfit.nn.ActLinear("silu", nn.Linear(8, 2))
    return nn.Sequential(nn.Linear(8, 16), actfit.nn.GELU(**options), nn.Linear(16, 8), actfit.nn.ELU(0.5), last)


def gradients(net: nn.Module, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(net(x).square().sum(), [x, *net.parameters()]))


@each_copy
@each_method
def test_copies_do_the_same(options: dict, copied) -> None:
    net, x = mlp(options), torch.randn(5, 8, requires_grad=True)
    other = copied(net)
    assert repr(other) == repr(net)
    assert torch.equal(other(x), net(x))
    assert all(map(torch.equal, gradients(other, x), gradients(net, x)))


@each_method
def test_state_dicts_are_stocks(options: dict) -> None:
    assert list(actfit.nn.GELU(**options).state_dict()) == []
    stock = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    ours = nn.Sequential(nn.Linear(8, 16), actfit.nn.GELU(**options), nn.Linear(16, 8))
    assert list(ours.state_dict()) == list(stock.state_dict())
    ours.load_state_dict(stock.state_dict())
    x = torch.randn(5, 8)
    with torch.no_grad():
        assert torch.equal(ours(x), stock(x))


def test_modules_are_instances_of_stocks() -> None:
    shared = [name for name in actfit.nn.__all__ if hasattr(nn, name)]
    assert len(shared) >= 20
    assert all(issubclass(getattr(actfit.nn, name), getattr(nn, name)) for name in shared)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@each_method
def test_models_are_moved_to_another_dtype(options: dict, dtype: torch.dtype) -> None:
    net, x = mlp(options).to(dtype), torch.randn(5, 8, dtype=dtype, requires_grad=True)
    assert net(x).dtype == dtype
    assert all(gradient.dtype == dtype for gradient in gradients(net, x))


@each_method
def test_one_module_twice_and_tied_weights(options: dict) -> None:
    """The same as with two modules and one weight, as a module has no state."""
    linear, act = nn.Linear(8, 8), actfit.nn.GELU(**options)
    tied, apart = nn.Linear(8, 8), nn.Linear(8, 8)
    tied.weight = apart.weight = linear.weight
    once = nn.Sequential(linear, act, tied, act)
    twice = nn.Sequential(linear, actfit.nn.GELU(**options), tied, actfit.nn.GELU(**options))
    x = torch.randn(5, 8, requires_grad=True)
    assert len(list(once.parameters())) == 3
    assert all(map(torch.equal, gradients(once, x), gradients(twice, x)))


@each_method
def test_a_transformer_layer_trains_and_evaluates(options: dict) -> None:
    def layer(act: nn.Module) -> nn.TransformerEncoderLayer:
        torch.manual_seed(0)
        return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation=act, batch_first=True)

    ours, stock, x = layer(actfit.nn.GELU(**options)), layer(nn.GELU()), torch.randn(2, 5, 16, requires_grad=True)
    cotangent = torch.randn(2, 5, 16)
    got, expected = (torch.autograd.grad(model(x), [x, *model.parameters()], cotangent) for model in (ours, stock))
    # Derivatives are off by 2e-4 at most, 3-bit ones by 0.11 (see test_torch_autograd); their errors have both signs
    # and are weighted with numbers below 1.
    bound = 0.11 if options["method"] == "fewbit" else 2e-4
    for gradient, exact in zip(got, expected, strict=True):
        assert ((gradient - exact).abs() <= bound * exact.abs().max().clamp(min=1)).all()
    assert ours.activation_relu_or_gelu == stock.activation_relu_or_gelu == 2  # torch's mark of the fast path
    with torch.inference_mode():
        assert torch.equal(ours.eval()(x), stock.eval()(x))
