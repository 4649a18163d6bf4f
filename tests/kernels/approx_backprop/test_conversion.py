"""Whole models by approximate backprop: converted, trained, copied, reverted."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import convert, saved_bytes
from tests.kernels.approx_backprop.models import METHOD, each_model, error, gradients, made

pytestmark = pytest.mark.usefixtures("afresh", "one_thread")


def trained(net: Any, x: Tensor, steps: int = 10) -> list[float]:
    """The loss before each step of SGD."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    target = torch.arange(len(x)) % 4
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(net(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.slow
@each_model
@pytest.mark.parametrize("bits", [8, 4])
def test_a_model_trains_and_is_put_back(name: str, bits: int) -> None:
    net, x = made(name)
    stock = copy.deepcopy(net)
    keys = list(net.state_dict())
    before = saved_bytes(net, x).total
    report = convert(net, METHOD, bits=bits, inputs=x)
    assert not report.left
    assert report.before is not None
    assert report.before.total == before
    assert report.after is not None
    assert report.after.total == saved_bytes(net, x).total < before / (2 if bits == 8 else 3)
    assert list(net.state_dict()) == keys
    y, got = gradients(net, x)
    expected, exact = gradients(stock, x)
    assert torch.equal(y, expected)
    assert all(map(torch.equal, net.buffers(), stock.buffers()))
    # Each of some ten layers adds an error of about a step: 1/16 of the range at 4 bits, 1/256 at 8.
    assert error(got, exact) <= (0.5 if bits == 4 else 0.05)
    ours, theirs = trained(net, x), trained(stock, x)
    assert ours[0] == theirs[0]
    assert abs(ours[-1] - theirs[-1]) < 0.1 * theirs[0]
    net.load_state_dict(stock.state_dict())
    report.revert()
    assert not any("forward" in vars(module) for module in net.modules())
    for gradient, stock_gradient in zip(gradients(net, x)[1], gradients(stock, x)[1], strict=True):
        assert torch.equal(gradient, stock_gradient)


@each_model
def test_in_full_gradients_are_autograds(name: str) -> None:
    net, x = made(name)
    net, x = net.double(), x.double()
    stock = copy.deepcopy(net)
    convert(
        net, METHOD, scheme="fused", include="*" if name != "transformer" else ["0", "1.norm*", "1.q", "1.out", "2.k"]
    )
    (y, got), (expected, exact) = gradients(net, x), gradients(stock, x)
    assert torch.equal(y, expected)
    # Sums of some thousand numbers, through some ten layers.
    assert error(got, exact) <= 1e6 * torch.finfo(torch.float64).eps


def test_frozen_and_evaluated() -> None:
    net, x = made("residual")
    convert(net, METHOD)
    stock = copy.deepcopy(net)
    for model in (net, stock):
        model[:4].requires_grad_(False)
    net.eval()
    stock.eval()
    convert(stock, METHOD).revert()
    assert torch.equal(net(x), stock(x))
    net.train()
    _, got = gradients(net, x)
    assert all(gradient.isfinite().all() for gradient in got)


def test_sites_can_be_chosen_and_say_why_not() -> None:
    net, x = made("pre-activation")
    net[3].conv1.padding_mode = "circular"
    report = convert(net, METHOD, bits=4, inputs=x, include=["2", "3"], exclude="2.past")
    reasons = {site.name: site.reason for site in report.left}
    assert reasons["0"] == reasons["5"] == "not included"
    assert reasons["2.past"] == "excluded"
    assert "padding_mode='circular'" in reasons["3.conv1"]
    assert {site.name for site in report.converted} >= {"2.norm1", "2.relu()", "2.conv1", "3.past"}
    assert "layers and activations converted" in str(report)
    assert "| 2.conv1 | Conv2d | approx-backprop, 4 bits, robust |" in str(report)
    again = convert(net, METHOD)
    assert {site.name for site in again.converted} == {"0", "1", "2.past", "5"}
    assert "it goes by approx-backprop already; revert that first" in str(again)
    again.revert()
    report.revert()
    assert not any("forward" in vars(module) for module in net.modules())


def test_smooth_functions_keep_their_derivative_in_few_bits() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Mish(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.LeakyReLU(0.3))
    report = convert(net, METHOD, bits=8)
    now = {site.was: site.now for site in report.converted}
    assert now["Mish"] == "fewbit, 8 bits"
    assert now["GELU"] == "fewbit, 8 bits"
    assert now["LeakyReLU"] == "approx-backprop, 8 bits, robust"


def test_fused_leaves_alone_what_it_cannot_keep_exactly() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Mish(), nn.Linear(8, 8), nn.ReLU6(), nn.Tanh(), nn.LeakyReLU(0.3))
    report = convert(net, METHOD, scheme="fused")
    assert [site.was for site in report.left] == ["Mish", "Tanh"]
    assert "is not exact" in report.left[0].reason
    assert {site.was: site.now for site in report.converted}["ReLU6"] == "fewbit, 1 bit"


def test_copies_and_pickles_stay_converted() -> None:
    net, x = made("residual")
    convert(net, METHOD, bits=4, inputs=x)
    state = copy.deepcopy(net.state_dict())
    kept, (_, exact) = saved_bytes(net, x).total, gradients(net, x)
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        copied.load_state_dict(state)
        assert saved_bytes(copied, x).total == kept
        assert error(gradients(copied, x)[1], exact) == 0


def test_every_kind_of_module_is_told_of() -> None:
    net = nn.Sequential(nn.ReLU(), nn.GroupNorm(2, 8), nn.MultiheadAttention(8, 2))
    net[0].register_forward_hook(lambda *_: None)  # hooks still run
    report = convert(net, METHOD)
    assert [site.name for site in report.converted] == ["0"]
    assert {site.name: site.reason for site in report.left} == dict.fromkeys(
        ["1", "2"], "it is not one of the layers that can save few bits"
    )
    assert "it goes by approx-backprop already" in str(convert(net, METHOD))
    report.revert()
    assert convert(nn.ReLU(), METHOD).converted[0].was == "ReLU"  # a model of one module


def test_hooks_of_modules_run() -> None:
    net, x = made("pre-activation")
    seen = []
    net[2].norm1.register_forward_hook(lambda *_: seen.append("norm"))
    net[2].conv1.register_full_backward_hook(lambda *_: seen.append("conv"))
    convert(net, METHOD)
    gradients(net, x)
    assert seen == ["norm", "conv"]


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50}
TINY = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 50, "n_positions": 32}),
    "llama": ("LlamaForCausalLM", SIZES),
    "bert": ("BertModel", SIZES),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_models_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    kind, values = TINY[name]
    kind = getattr(transformers, kind)
    torch.manual_seed(0)
    net = kind(kind.config_class(**values))
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    stock = copy.deepcopy(net)
    tokens = {"input_ids": torch.randint(2, 50, (4, 16))}
    report = convert(net, METHOD, bits=8, inputs=tokens)
    assert not report.left
    assert report.before is not None
    assert report.after is not None
    assert report.after.total < 0.6 * report.before.total

    def run(model: nn.Module) -> tuple[Tensor, list[Tensor]]:
        y = model(**tokens)[0]
        used = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(y.square().sum(), used, allow_unused=True)
        return y.detach(), [gradient for gradient in gradients if gradient is not None]

    (y, got), (expected, exact) = run(net), run(stock)
    # Our kernels compute functions that GPT-2 writes out, with other roundings, through two layers.
    assert (y - expected).abs().max() <= (100 * torch.finfo(torch.float32).eps if name == "gpt2" else 0)
    assert error(got, exact) <= 0.05  # as above
    report.revert()
    assert all(map(torch.equal, run(net)[1], exact))
