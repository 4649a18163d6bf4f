"""With exact codes every gradient is stock's: checkpoints, hooks, autocast, transforms, threads, nesting."""

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import kernels
from kernels import convert
from tests.kernels.eager.nets import Net, assert_same, block, converted, gradients, loss_of, of_activations

pytestmark = [
    pytest.mark.usefixtures("exact_codes"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
]
each_checkpoint = pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])


def deep() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 32), block(), nn.TransformerEncoderLayer(32, 4, 64, 0.1), block())


def some() -> Tensor:
    return torch.randn(16, 32, requires_grad=True)


def assert_as_stock(net: nn.Module, stock: nn.Module, x: Tensor, **options: Any) -> None:
    torch.testing.assert_close(gradients(net, x, **options), gradients(stock, x, **options), rtol=0, atol=0)


@each_checkpoint
def test_a_checkpoint_inside(reentrant: bool) -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        x = checkpoint(net[1], F.gelu(net[0](x)), use_reentrant=reentrant)
        return net[2](F.gelu(checkpoint(net[3], x, use_reentrant=reentrant)))

    assert_same(Net(forward, nn.Linear(32, 32), block(), block(), block()), some())


@each_checkpoint
@pytest.mark.parametrize("exclude", [None, "1", "3.*"])
def test_a_checkpoint_around(reentrant: bool, exclude: str | None) -> None:
    """The second run saves the same tensors, also in excluded modules."""
    stock = deep()
    net, x = converted(stock, exclude=exclude), some()
    for model in (net, stock):
        model.call = lambda x, model=model: checkpoint(model, x, use_reentrant=reentrant)
    expected = gradients(stock, x, call=stock.call)
    torch.testing.assert_close(gradients(net, x, call=net.call), expected, rtol=0, atol=0)


def test_a_checkpoint_around_keeps_nothing() -> None:
    """Not even tensors of excluded modules."""
    net, packed = converted(deep(), exclude="1"), []

    def pack(x: Tensor) -> Tensor:
        packed.append(x)
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        net(some())
    seen = {id(tensor) for tensor in packed}
    assert len(seen) > 20
    assert any(tensor.shape == (16, 64) for tensor in packed)  # of the excluded module


def test_saved_on_the_cpu() -> None:
    stock = deep()
    net, x = converted(stock), some()
    expected = gradients(stock, x)
    with save_on_cpu():
        torch.testing.assert_close(gradients(net, x), expected, rtol=0, atol=0)

    def forward(net: Net, x: Tensor) -> Tensor:
        x = net[0](x)
        with save_on_cpu():
            x = net[1](x)
        return net[2](x)

    assert_same(Net(forward, nn.Linear(32, 32), block(), block()), x)


def test_two_backward_passes() -> None:
    stock = deep()
    by_model = []
    for model in (stock, converted(stock)):
        torch.manual_seed(0)
        loss = loss_of(model(torch.ones(16, 32)))
        loss.backward(retain_graph=True)
        loss.backward()
        by_model.append([weight.grad for weight in model.parameters()])
    torch.testing.assert_close(*by_model, rtol=0, atol=0)


def test_two_calls_before_backward() -> None:
    stock = Net(lambda net, x: net[0](x) * net[0](2 * x), deep())
    net = copy.deepcopy(stock)
    convert(net.layers[0], "compress")
    assert_as_stock(net, stock, some())


def test_one_within_another() -> None:
    """The outer model codes neither the codes of the inner one nor tensors that it saves whole."""
    stock = Net(lambda net, x: net[2](net[1](net[0](x)).exp().log()), nn.Linear(32, 32), block(), block())
    net = copy.deepcopy(stock)
    convert(net.layers[1], "compress")
    convert(net, "compress")
    assert_as_stock(net, stock, some())


def test_codes_of_one_within_another_are_not_coded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.eager.coder.Groups", kernels.eager.encoded.Groups)
    net, x = nn.Sequential(block(), block()), some()
    inner = copy.deepcopy(net)
    for part in inner:
        convert(part, "compress", bits=2)
    outer = copy.deepcopy(inner)
    convert(outer, "compress", bits=2)
    assert_as_stock(outer, inner, x)


def test_parts_of_this_project() -> None:
    for method in ("invact", "fewbit", "forward-ad"):
        net = nn.Sequential(nn.Linear(32, 64), kernels.GELU(method=method), nn.Linear(64, 8))
        assert_same(net, some())


CAST = {
    "linear": nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)),
    "square": nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)),
    "transformer": nn.Sequential(
        *(nn.TransformerEncoderLayer(32, 4, 64, 0.1, norm_first=norm_first) for norm_first in (True, False))
    ),
    "recurrent": Net(lambda net, x: net[0](x)[0], nn.LSTM(32, 32)),
    "products": Net(lambda net, x: net[0](x) @ net[1](x).float().t() @ net[0](x).float(), *[nn.Linear(32, 32)] * 2),
    "functions": of_activations(
        lambda h: (
            [function(h) for function in (torch.exp, torch.expm1, F.softplus, torch.tanh)]
            + [function(h, -1) for function in (torch.softmax, torch.log_softmax, torch.logsumexp, torch.cumsum)]
        ),
        saved=True,
    ),
}


@pytest.mark.parametrize("name", CAST)
def test_autocast(name: str) -> None:
    x = torch.randn(32, 32)
    net, stock = converted(CAST[name]), CAST[name]
    stock.zero_grad()

    def cast(model: nn.Module) -> Any:
        def call(x: Tensor) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return model(x)

        return call

    expected = gradients(stock, x, call=cast(stock))
    torch.testing.assert_close(gradients(net, x, call=cast(net)), expected, rtol=0, atol=0, equal_nan=True)
    net.zero_grad()
    stock.zero_grad()
    expected = gradients(stock, x, call=lambda x: checkpoint(cast(stock), x, use_reentrant=False))
    got = gradients(net, x, call=lambda x: checkpoint(cast(net), x, use_reentrant=False))
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def test_weights_cast_by_autocast_are_not_coded(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the input's gradient is exact for linear layers."""
    monkeypatch.setattr("kernels.eager.coder.Groups", kernels.eager.encoded.Groups)
    stock, x = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 48)), some()
    net = converted(stock, bits=2)
    with torch.autocast("cpu", torch.bfloat16):
        by_model = [torch.autograd.grad(loss_of(model(x)), x)[0] for model in (stock, net)]
    torch.testing.assert_close(*by_model, rtol=0, atol=0)


def test_transforms() -> None:
    """Transforms of the converted model, which then saves as stock does, and of functions within it."""
    stock, x = deep().eval(), some().detach()
    net = converted(stock)
    by_model = []
    for model in (stock, net):
        weights = dict(model.named_parameters())
        take = torch.func.grad(lambda w, model=model: torch.func.functional_call(model, w, (x,)).sum())
        by_model.append(take(weights))
    torch.testing.assert_close(*by_model, rtol=0, atol=0)
    assert_same(of_activations(lambda h: torch.vmap(lambda row: F.gelu(row) * row)(h)), x)
    assert_same(of_activations(lambda h: torch.func.jvp(F.gelu, (h,), (torch.ones(16, 64),))[1]), x)


def test_functional_call() -> None:
    stock, x = deep().eval(), some().detach()
    by_model = []
    for model in (stock, converted(stock)):
        weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
        loss_of(torch.func.functional_call(model, weights, (x,))).backward()
        by_model.append([weight.grad for weight in weights.values()])
    torch.testing.assert_close(*by_model, rtol=0, atol=0)


def test_modes_without_gradients() -> None:
    net, x = converted(deep()).eval(), some()
    expected = net(x).detach()
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            torch.testing.assert_close(net(x), expected, rtol=0, atol=0)
    with torch.inference_mode():
        made = torch.randn(16, 64)
    assert_same(of_activations(lambda h: F.gelu(h + made)), x)


def test_threads() -> None:
    net, x, by_run = converted(deep().eval()), some(), []

    def run() -> None:
        for _ in range(3):
            by_run.append(torch.autograd.grad(loss_of(net(x)), list(net.parameters())))

    run()
    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(by_run) == 12
    for repeated in by_run[1:]:
        torch.testing.assert_close(repeated, by_run[0], rtol=0, atol=0)
