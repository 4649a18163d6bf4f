"""With exact codes every gradient is stock's: views, slices, types, and changes in place."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.kernels.eager.nets import Net, assert_same, converted, gradients, loss_of, of_activations

pytestmark = pytest.mark.usefixtures("exact_codes")
Function = Callable[[Tensor], object]
each_way = pytest.mark.parametrize("saved", [False, True], ids=["", "saved before"])

VIEWS: dict[str, Function] = {
    "halves": lambda h: (lambda a, b: a * b + F.gelu(b))(*h.chunk(2, -1)),
    "thirds": lambda h: (lambda a, b, c: (a * b, F.gelu(b), c.square()))(*h.split([10, 10, 44], -1)),
    "small slices": lambda h: h[:, :1] * h + h[:, 3:4],
    "large slice": lambda h: h[:, :50].square(),
    "expanded": lambda h: h[:1].expand(16, 64) * h + h[:, None].expand(16, 3, 64).square().sum(1),
    "transposed": lambda h: F.gelu(h.t()).t() * h.t().contiguous().t() + h.t().square().t(),
    "strided": lambda h: h.as_strided((8, 64), (64, 1), 64) * h[:8],
    "overlapping": lambda h: F.gelu(h.as_strided((16, 64), (32, 1), 0)) * 2 + h.unfold(1, 4, 2).square().sum(),
    "every second": lambda h: h[::2] * h[1::2] * h.diagonal()[0],
    "contiguous": lambda h: F.gelu(h.t().contiguous()) * h.t().reshape(-1).view(64, 16),
    "contiguous slices": lambda h: (F.gelu(h[:, :20].contiguous()) * 2, F.gelu(h[:, :40].contiguous()) * h[:, :40]),
    "bits": lambda h: h * (h.detach().view(torch.int32) > 0),
    "types": lambda h: F.gelu(h.double() * h).float() * F.gelu(h.bfloat16()).to(h.dtype) + (h.half() * h.half()),
    "types as": lambda h: F.gelu(h.to("cpu", torch.float64)).type(torch.float32) * h.type_as(h),
    "empty": lambda h: (h[:0] * h[:0], h.view(0, -1) if h.numel() == 0 else h.square(), F.gelu(h[:, :0])),
    "sparse": lambda h: torch.sparse.mm(torch.eye(16).to_sparse(), h) * h + (h * (h > 1)).to_sparse().to_dense(),
    "detached": lambda h: h * h.detach() + F.gelu(h).detach() * h,
}


@each_way
@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str, saved: bool) -> None:
    assert_same(of_activations(VIEWS[name], saved), torch.randn(16, 32), kernels_differ=name == "thirds")


def changing(change: Callable[[Tensor], object], before: bool = False) -> Function:
    """A function that changes a copy of activations in place, then passes it to functions that save it."""

    def function(h: Tensor) -> Tensor:
        h = h + 0
        early = F.gelu(h * 1) if before else 0.0
        change(h)
        return F.gelu(h) * h + early

    return function


def set_slice(h: Tensor) -> None:
    h[:, :10] = 0


def by_operators(h: Tensor) -> None:
    h *= 2
    h -= 0.5
    h /= 3
    h **= 2


def two_halves(h: Tensor) -> None:
    a, b = h[:, :32], h[:, 32:]
    a.mul_(2)
    b.add_(a)


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "add": lambda h: h.add_(1),
    "operators": by_operators,
    "set": set_slice,
    "halves": two_halves,
    "half by relu": lambda h: h[:, :32].relu_(),
    "part by relu": lambda h: h[:, :16].relu_(),
    "flat": lambda h: h.view(-1).mul_(3),
    "transposed by tanh": lambda h: h.t().tanh_(),
    "transposed by relu": lambda h: h.t().relu_(),
    "masked": lambda h: h.masked_fill_(h < 0, -1.0).clamp_(max=1.0),
    "copied": lambda h: h.copy_(torch.ones(16, 64)),
    "data": lambda h: h.data.mul_(2),
    "data of a view": lambda h: h.view(-1).data.mul_(2),
    "silu": lambda h: F.silu(h, inplace=True),
    "elu": F.elu_,
    "leaky relu": F.leaky_relu_,
    "relu by position": lambda h: F.relu(h, True),
    "hardtanh": F.hardtanh_,
    "relu": torch.relu_,
}


@each_way
@pytest.mark.parametrize("before", [False, True], ids=["", "used before"])
@pytest.mark.parametrize("name", CHANGES)
def test_changes_in_place(name: str, before: bool, saved: bool) -> None:
    assert_same(of_activations(changing(CHANGES[name], before), saved), torch.randn(16, 32))


def test_a_change_after_a_code_was_made() -> None:
    """The code holds the old value; stock's backward fails."""
    net, x = of_activations(lambda h: F.gelu(h) + h.add_(1)), torch.randn(16, 32)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(net, x)
    same = of_activations(lambda h: F.gelu(h) + (h + 1))
    same.load_state_dict(net.state_dict())
    expected = gradients(same, x)
    torch.testing.assert_close(gradients(converted(net), x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["relu", "silu", "hardtanh"])
def test_a_call_that_is_repeated_changes_nothing(name: str) -> None:
    """Although it worked in place. Its argument is decoded once, also for GELU's gradient."""
    function, places = getattr(F, name), (-1.0, 1.0) if name == "hardtanh" else ()
    net, x = of_activations(lambda h: F.gelu(h) + function(h, *places, True) * h), torch.randn(16, 32)
    same = of_activations(lambda h: F.gelu(h) + function(h, *places) ** 2)
    same.load_state_dict(net.state_dict())
    torch.testing.assert_close(gradients(converted(net), x), gradients(same, x))


def test_a_change_of_what_is_kept_as_it_is() -> None:
    """Backward fails as stock's does."""
    net = of_activations(lambda h: (lambda y: y.log() + y.mul_(2))(h.square() + 1))
    for model in (net, converted(net)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradients(model, torch.randn(16, 32))


@pytest.mark.parametrize("shape", [(1,), (16, 1), (16, 64)])
@pytest.mark.parametrize("by", [torch.add, torch.sub])
def test_a_constant_that_is_changed_afterwards(shape: tuple[int, ...], by: Callable[..., Tensor]) -> None:
    """If stock's backward does not use it, ours must not either, or must use the old value."""

    def function(h: Tensor) -> Tensor:
        constant = torch.ones(shape)
        y = by(h, constant)
        constant.mul_(9)
        return F.gelu(y) * y + constant

    assert_same(of_activations(function, saved=True), torch.randn(16, 32))


@pytest.mark.parametrize("shape", [(1,), (16, 64)])
def test_a_buffer_that_is_changed_afterwards(shape: tuple[int, ...]) -> None:
    """For example a running mean."""

    def forward(net: Net, x: Tensor) -> Tensor:
        h = net[0](x)
        before, y = F.gelu(h), h - net.mean
        net.mean.lerp_(h.detach().mean(), 0.1)
        return F.gelu(y) * y + before

    assert_same(Net(forward, nn.Linear(32, 64), mean=torch.zeros(shape)), torch.randn(16, 32))


def test_an_input_that_is_changed_afterwards() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        x = x.clone() if x.requires_grad else x
        h = net[0](x * 1)
        before, y = F.gelu(h), h + x
        x.mul_(9)
        return F.gelu(y) * y + before

    assert_same(Net(forward, nn.Linear(32, 32)), torch.randn(16, 32))


def test_results_that_are_given() -> None:
    def function(h: Tensor) -> Tensor:
        out = torch.empty(16, 64)
        with torch.no_grad():
            torch.mul(h, 2, out=out)
        y = F.gelu(h * out)
        return y * h

    assert_same(of_activations(function, saved=True), torch.randn(16, 32))


def test_long_chains() -> None:
    """Calls that save nothing: only a few of them are run again."""

    def function(h: Tensor) -> Tensor:
        for _ in range(600):
            h = h - 1e-3 * h
        return F.gelu(h) * h

    assert_same(of_activations(function, saved=True), torch.randn(16, 32))


def test_sums_that_backward_does_not_reach() -> None:
    """Backward uses a part of the saved tensors, in another order, and again."""
    net, x = of_activations(lambda h: (F.gelu(h) * h, F.silu(h) + F.gelu(2 * h))), torch.randn(16, 32)
    by_model = []
    for model in (net, converted(net)):
        model.zero_grad()
        (first, second), _ = model(x)
        of_second = torch.autograd.grad(second.sum(), list(model.parameters()), retain_graph=True)
        of_first = torch.autograd.grad(loss_of(first), list(model.parameters()), retain_graph=True)
        by_model.append(
            [*of_second, *of_first, *torch.autograd.grad(loss_of((first, second)), list(model.parameters()))]
        )
    torch.testing.assert_close(*by_model, rtol=0, atol=0)


def test_second_derivatives() -> None:
    net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 64), nn.Softplus())
    by_model = []
    for model in (net, converted(net)):
        x = torch.ones(16, 32).cumsum(1).mul(0.1).requires_grad_()
        (derivative,) = torch.autograd.grad(loss_of(model(x)), x, create_graph=True)
        by_model.append(torch.autograd.grad(derivative.square().sum(), list(model.parameters()), allow_unused=True))
    torch.testing.assert_close(*by_model, rtol=0, atol=0)


def test_gradients_within_the_forward_pass() -> None:
    """As energy-based networks compute them."""

    def forward(net: Net, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(net[0](x).sum(), x, create_graph=True)[0]

    assert_same(Net(forward, nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))), torch.randn(16, 32))


class Other(torch.autograd.Function):
    """Saves its argument and an intermediate result."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, x.exp())
        return x * x.exp()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        x, e = ctx.saved_tensors
        return grad * e * (x + 1)


@pytest.mark.parametrize("name", ["Other", "dropout", "max_pool2d", "relu", "div"])
def test_functions_of_others(name: str) -> None:
    """Whatever their names are."""
    kind = type(name, (Other,), {})
    assert_same(of_activations(lambda h: F.gelu(kind.apply(h)) * h, saved=True), torch.randn(16, 32))
