"""Tensors that backward reads piece by piece: the same gradients as of whole ones, and less memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.eager import cutting, undecoded
from kernels.memory.step import peak_bytes
from tests.kernels.eager.nets import Net, assert_same, converted, gradients, loss_of

LENGTH = 96  # elements of a piece: three groups of 32, or one of 64 or 96
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu by tanh": lambda h: F.gelu(h, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "elu": F.elu,
    "logsigmoid": F.logsigmoid,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": lambda h: F.hardtanh(h, -0.5, 0.25),
    "dropout": lambda h: F.dropout(h.square(), 0.25),
    "gate": lambda h: F.silu(h) * h.roll(1),
    "gate of a part": lambda h: F.silu(h[:, :32]) * h[:, 32:],
    "scaled": lambda h: F.gelu(h * 3) * 0.5 + h.roll(2),
    "by a row": lambda h: F.silu(h * h[:1].sigmoid()),
}

# The operators that read pieces. Others decode whole: of mish none writes into a tensor, logsigmoid saves two, parts
# of rows have gaps, and a product with a row is not made by pieces.
READ: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gelu", "gelu by tanh"), ("gelu_backward",)),
    **{name: (f"{name}_backward",) for name in ("silu", "sigmoid", "tanh", "softplus", "elu", "leaky_relu")},
    **{name: (f"{name}_backward",) for name in ("hardswish", "hardsigmoid", "hardtanh")},
    **dict.fromkeys(("mish", "logsigmoid", "gate of a part"), ()),
    "relu": ("threshold_backward",),
    "dropout": ("mul",),
    "gate": ("silu_backward", "mul"),
    "by a row": ("mul",),
    "scaled": ("gelu_backward",),
}


@pytest.fixture
def cut(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small tensors be read by pieces."""
    monkeypatch.setattr(cutting, "FEW", 1)
    monkeypatch.setattr(cutting, "length_of", lambda unit, device: LENGTH // unit * unit)


@pytest.fixture
def by_pieces(cut: None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The operators that have read pieces, as they do so."""
    read, original = [], undecoded._by_pieces

    def recorded(into: Any, *given: Any) -> Tensor | None:
        result = original(into, *given)
        read.extend([into] * (result is not None))
        return result

    monkeypatch.setattr(undecoded, "_by_pieces", recorded)
    return read


def net_of(name: str) -> nn.Module:
    width = 32 if "part" in name else 64
    return Net(lambda net, x: net[1](FUNCTIONS[name](net[0](x))), nn.Linear(32, 64), nn.Linear(width, 8))


@pytest.mark.usefixtures("exact_codes", "cut")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_stocks_with_exact_codes(name: str) -> None:
    assert_same(net_of(name), torch.randn(21, 32))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gradients_are_those_of_whole_tensors(
    name: str, dtype: torch.dtype, small: None, request: pytest.FixtureRequest
) -> None:
    net, x = converted(net_of(name).to(dtype), bits=3), torch.randn(21, 32, dtype=dtype)
    whole = gradients(net, x)
    net.zero_grad()
    request.getfixturevalue("cut")
    torch.testing.assert_close(gradients(net, x), whole, rtol=0, atol=0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_read_by_pieces(name: str, by_pieces: list[Any]) -> None:
    gradients(converted(net_of(name)), torch.randn(21, 32))
    assert {into.overloadpacket for into in by_pieces} == {getattr(torch.ops.aten, read) for read in READ[name]}


@pytest.mark.usefixtures("cut")
def test_casts_with_an_order_in_memory_are_made_whole() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        h = net[0](x)
        return h.sin() + F.silu(h.to(torch.float64, memory_format=torch.channels_last))

    net = converted(Net(forward, nn.Conv2d(3, 8, 3))).to(memory_format=torch.channels_last)
    _, (weight, _) = gradients(net, torch.randn(2, 3, 12, 12))
    assert weight.isfinite().all()


@pytest.mark.usefixtures("exact_codes", "cut")
def test_images_of_either_order_in_memory() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 4, 3), nn.Hardswish(), nn.Conv2d(4, 2, 1))
    assert_same(net, torch.randn(2, 3, 12, 12))
    assert_same(net.to(memory_format=torch.channels_last), torch.randn(2, 3, 12, 12))


@pytest.mark.usefixtures("exact_codes", "cut")
def test_gradients_of_gradients_with_exact_codes() -> None:
    """Autograd differentiates what reads the tensor, which most of its operators then decode whole."""
    net, x = net_of("silu"), torch.randn(21, 32, requires_grad=True)

    def second(net: nn.Module) -> Tensor:
        (first,) = torch.autograd.grad(loss_of(net(x)), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    torch.testing.assert_close(second(converted(net)), second(net), rtol=0, atol=0)


@pytest.mark.usefixtures("exact_codes")
def test_several_backward_passes(by_pieces: list[Any]) -> None:
    net, x = converted(net_of("gelu")), torch.randn(21, 32, requires_grad=True)
    loss = loss_of(net(x))
    each = [torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(3)]
    assert torch.equal(each[0], each[1])
    assert torch.equal(each[0], each[2])
    assert by_pieces


@pytest.mark.usefixtures("exact_codes")
def test_batches_of_gradients(by_pieces: list[Any]) -> None:
    net, x = converted(net_of("gelu")), torch.randn(21, 32, requires_grad=True)
    y = net(x)
    directions = torch.randn(3, *y.shape)
    (batch,) = torch.autograd.grad(y, x, directions, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(y, x, direction, retain_graph=True)[0] for direction in directions]
    torch.testing.assert_close(batch, torch.stack(one_by_one))
    assert by_pieces


@pytest.mark.usefixtures("exact_codes")
def test_outer_hooks_unpack_before_anything_is_read(by_pieces: list[Any]) -> None:
    """That of a checkpoint runs forward again, which no operator can do."""
    net, x = net_of("gelu"), torch.randn(21, 32, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y, stocks = converted(net)(x), net(x)
    torch.testing.assert_close(*(torch.autograd.grad(loss_of(each), x) for each in (y, stocks)), rtol=0, atol=0)
    assert not by_pieces


def test_the_peak_is_lower_by_a_hidden_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded whole, GELU's input lives beside the gradients of its output and of itself."""
    net, x = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)), torch.randn(1024, 64)
    monkeypatch.setattr(cutting, "length_of", lambda unit, device: 1 << 14)
    by_pieces = peak_bytes(converted(net), x)
    monkeypatch.setattr(cutting, "FEW", 1 << 30)
    whole = peak_bytes(converted(net), x)
    hidden, pieces = 1024 * 512 * 4, 4 * (1 << 14) * 4  # what a piece is decoded to, and three made on the way
    assert whole - by_pieces > hidden - pieces
