"""Torch's own layers in a converted model: transformer encoders, recurrent, shared, parametrized; hooks."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kernels
from kernels import convert, saved_bytes
from tests.kernels.conversion.torch_models import ROUNDING, Plain, batch, build, equal, gradients, modules, near

pytestmark = pytest.mark.usefixtures("afresh")

ACTIVATIONS: dict[str, Callable[[], Any]] = {
    "F.gelu": lambda: F.gelu,
    "'gelu'": lambda: "gelu",
    "nn.GELU": nn.GELU,
    "F.relu": lambda: F.relu,
    "nn.SiLU": nn.SiLU,
}


def layer(act: str) -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation=ACTIVATIONS[act](), batch_first=True)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_a_transformer_layer(act: str) -> None:
    """In training as stock but for slopes; in evaluation, on torch's fast path, bit for bit."""
    stock, model = layer(act), layer(act)
    x = torch.randn(2, 5, 16)
    before, mark = dict(vars(model)), model.activation_relu_or_gelu
    report = convert(model, "forward-ad")
    (site,) = report.converted
    assert site.name == "activation"
    assert model.activation_relu_or_gelu == stock.activation_relu_or_gelu == mark
    assert near(gradients(model, model, x), gradients(stock, stock, x), ROUNDING)
    kept = saved_bytes(model, x, fake=False).total
    assert kept == saved_bytes(model, x).total
    with torch.no_grad():
        assert torch.equal(model.eval()(x), stock.eval()(x))
    report.revert()
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items() if name != "training")
    assert equal(gradients(model.train(), model, x), gradients(stock.train(), stock, x))


@pytest.mark.parametrize("act", ["F.gelu", "nn.GELU"])
def test_a_transformer_encoder(act: str) -> None:
    """Each of its layers has a copy of its own."""
    stock, model = (nn.TransformerEncoder(layer(act), 3, enable_nested_tensor=False) for _ in range(2))
    x = torch.randn(2, 5, 16)
    report = convert(model, inputs=x)
    assert [site.name for site in report.converted] == [f"layers.{index}.activation" for index in range(3)]
    assert {site.now for site in report.converted} == {"invact"}
    # Next to the minimum of gelu slopes are off by 2e-4 at most; weighed with numbers of the size of 1.
    assert near(gradients(model, model, x), gradients(stock, stock, x), 1e-3)
    with torch.no_grad():
        assert torch.equal(model.eval()(x), stock.eval()(x))


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")  # up to torch 2.13
def test_nested_tensors_of_a_transformer_encoder_in_evaluation() -> None:
    """Torch's own way with padding, which it takes on the fast path only."""
    stock, model = (nn.TransformerEncoder(layer("'gelu'"), 2).eval() for _ in range(2))
    convert(model, "invact")
    x, padding = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        assert torch.equal(model(x, src_key_padding_mask=padding), stock(x, src_key_padding_mask=padding))


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_are_left_alone(kind: type[nn.Module]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = kind(8, 16, batch_first=True)
            self.up, self.act, self.out = nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.act(self.up(self.rnn(x)[0])))

    model = Net()
    report = convert(model, inputs=torch.randn(2, 5, 8))
    assert [(site.name, site.reason) for site in report.left] == [
        ("rnn", "its activations are computed inside torch's own recurrent kernel")
    ]
    assert [site.name for site in report.converted] == ["act"]
    assert type(model.rnn) is kind


def test_parametrized_layers() -> None:
    """A spectral norm is a module with buffers that change in training; a scale, one without anything."""

    class Scale(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    def build() -> nn.Module:
        torch.manual_seed(0)
        first = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16))
        last = nn.Linear(16, 4)
        nn.utils.parametrize.register_parametrization(last, "weight", Scale())
        return nn.Sequential(first, nn.GELU(), last)

    model, stock = build(), build()
    state = copy.deepcopy(model.state_dict())
    report = convert(model, inputs=batch())
    assert [site.name for site in report.converted] == ["1"]
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert near(gradients(model, model), gradients(stock, stock), 1e-3)  # see test_a_transformer_encoder


def test_activations_with_hooks_are_left_alone() -> None:
    model, seen = modules(), []
    handle = model[1].register_forward_hook(lambda *_: seen.append("forward"))
    model[3].register_full_backward_hook(lambda *_: seen.append("backward"))
    report = convert(model, "fewbit")
    assert [site.reason for site in report.sites] == ["it has hooks, which would not be called any more"] * 2
    gradients(model, model)
    assert seen == ["forward", "backward"]
    handle.remove()
    assert [site.name for site in convert(model, "fewbit").converted] == ["1"]


def test_hooks_of_other_modules_go_on() -> None:
    model, seen = build("a call"), []
    for module in (model, model.up):
        module.register_forward_hook(lambda *_: seen.append("forward"))
    convert(model, "fewbit", inputs=batch())
    seen.clear()
    model(batch())
    assert seen == ["forward", "forward"]


def wrap(module: nn.Module) -> list[str]:
    """As accelerate does: a forward of the instance's own around the class's."""
    seen: list[str] = []
    old = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        seen.append(type(module).__name__)
        return old(*args, **kwargs)

    module.forward = forward
    return seen


def test_forwards_that_were_replaced_are_left_alone() -> None:
    model = nn.Sequential(modules(), Plain())
    seen = wrap(model[0][1]), wrap(model[1])
    present = model[1].forward
    report = convert(model, "fewbit")
    assert {site.name: site.reason for site in report.left} == {
        "0.1": "its forward was replaced",
        "1.gelu()": "the forward that calls it was replaced by another",
    } or {site.name for site in report.left} == {"0.1", "1.gelu()"}
    assert [site.name for site in report.converted] == ["0.3"]
    assert model[1].forward is present
    assert seen == ([], [])


def test_a_forward_replaced_after_conversion_still_remembers_less() -> None:
    model = Plain()
    report = convert(model, "fewbit")
    kept = saved_bytes(model, batch()).total
    seen = wrap(model)
    assert saved_bytes(model, batch()).total == kept < saved_bytes(Plain(), batch()).total
    assert set(seen) == {"Plain"}
    with pytest.raises(kernels.KernelError, match="replaced since"):
        report.revert()


class Sharp(nn.Module):
    """Calls with parameters that no table has, and with ones that come with the input."""

    def forward(self, x: Tensor, beta: float = 2.0) -> Tensor:
        return F.gelu(F.softplus(x, beta=beta)).exp()


@pytest.mark.parametrize("method", ["fewbit", "auto", "forward-ad"])
def test_calls_with_parameters_of_their_own_go_on(method: str) -> None:
    """What has no table for them is called as it was."""
    model, x = nn.Sequential(nn.Linear(8, 8), Sharp()), batch()
    stock = copy.deepcopy(model)
    convert(model, method, inputs=x)
    with torch.no_grad():
        assert near([model(x)], [stock(x)], ROUNDING)
    assert torch.isfinite(gradients(model, model)[1]).all()
