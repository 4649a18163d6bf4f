"""Norms written out in other libraries' modules: recognised numerically, whatever their names and roundings are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import convert, saved_bytes
from kernels.approx_backprop import NormLinear
from kernels.approx_backprop.forwards import Approximate
from kernels.approx_backprop.layers import why_not
from kernels.approx_backprop.written_norms import WrittenNorm, written_norm
from kernels.errors import KernelError
from kernels.methods.compressed import Compressed

WIDTH = 48
Formula = Callable[[nn.Module, Tensor], Tensor]


class Written(nn.Module):
    """A module that computes `formula`, with the named parameters."""

    def __init__(self, formula: Formula, *names: str) -> None:
        super().__init__()
        self.formula = formula
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.rand(WIDTH)))

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(self, x)


class Norm(Written):
    """A norm by its class's name, for formulas without parameters."""


def rms(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def centred(x: Tensor, eps: float = 1e-5) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def t5(m: nn.Module, x: Tensor) -> Tensor:
    y = x * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-6)
    return m.weight * (y.to(m.weight.dtype) if m.weight.dtype in (torch.float16, torch.bfloat16) else y)


# The norms of transformers' models: Llama, Gemma, Olmo 2, T5, Cohere, DeBERTa, Nemotron, Olmo, Llama 4's queries; one
# with other names, and one with a large eps.
NORMS: dict[str, tuple[nn.Module, WrittenNorm]] = {
    "rounded, then gain": (
        Written(lambda m, x: m.weight * rms(x.float()).to(x.dtype), "weight"),
        WrittenNorm(False, "weight", "", False, 1e-6),
    ),
    "1 + w": (
        Written(lambda m, x: (rms(x.float()) * (1.0 + m.weight.float())).type_as(x), "weight"),
        WrittenNorm(False, "weight", "", True, 1e-6),
    ),
    "gain, then rounded": (
        Written(lambda m, x: (m.weight * rms(x.float())).to(x.dtype), "weight"),
        WrittenNorm(False, "weight", "", False, 1e-6),
    ),
    "rounded as the weight": (Written(t5, "weight"), WrittenNorm(False, "weight", "", False, 1e-6)),
    "a mean, no bias": (
        Written(lambda m, x: (m.weight.float() * centred(x.float())).to(x.dtype), "weight"),
        WrittenNorm(True, "weight", "", False, 1e-5),
    ),
    "a mean and a bias": (
        Written(lambda m, x: m.weight * centred(x.float(), 1e-7).to(x.dtype) + m.bias, "weight", "bias"),
        WrittenNorm(True, "weight", "bias", False, 1e-7),
    ),
    "torch's, 1 + w": (
        Written(
            lambda m, x: F.layer_norm(x, (WIDTH,), (m.weight + 1).to(x.dtype), m.bias.to(x.dtype)), "weight", "bias"
        ),
        WrittenNorm(True, "weight", "bias", True, 1e-5),
    ),
    "torch's, no parameters": (
        Norm(lambda m, x: F.layer_norm(x.float(), x.shape[-1:]).to(x.dtype)),
        WrittenNorm(True, "", "", False, 1e-5),
    ),
    "no parameters": (Norm(lambda m, x: rms(x.float()).type_as(x)), WrittenNorm(False, "", "", False, 1e-6)),
    "other names": (
        Written(lambda m, x: (m.beta + m.alpha * centred(x.float(), 0.3)).to(x.dtype), "beta", "alpha"),
        WrittenNorm(True, "alpha", "beta", False, 0.3),
    ),
}
OTHERS: dict[str, nn.Module] = {
    "eps outside of the root": Written(lambda m, x: m.weight * x / (x.std(-1, keepdim=True) + 1e-2), "weight"),
    "an unbiased variance": Written(
        lambda m, x: m.weight * (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-6), "weight"
    ),
    "the gain squared": Written(lambda m, x: m.weight**2 * rms(x), "weight"),
    "something added": Written(lambda m, x: m.weight * rms(x) + 1e-4 * x, "weight"),
    "a statistic without gradient": Written(
        lambda m, x: m.weight * x * torch.rsqrt(x.detach().pow(2).mean(-1, keepdim=True) + 1e-6), "weight"
    ),
    "a weight that is not used": Written(lambda m, x: rms(x), "weight"),
    "channels first": Written(lambda m, x: F.layer_norm(x.movedim(1, -1), (WIDTH,), m.weight).movedim(-1, 1), "weight"),
    "over two dimensions": Written(
        lambda m, x: m.weight * x * torch.rsqrt(x.pow(2).mean((-2, -1), keepdim=True) + 1e-6), "weight"
    ),
    "dropout": Written(lambda m, x: F.dropout(m.weight * rms(x), 0.5, m.training), "weight"),
    "a scale": Written(lambda m, x: m.weight * x, "weight"),
}
each_norm = pytest.mark.parametrize("name", NORMS)


@each_norm
def test_what_a_norm_computes_is_told(name: str) -> None:
    module, expected = NORMS[name]
    norm = written_norm(module)
    assert norm is not None
    # eps is read off results in float32 that are 2^-27 / sqrt(eps): relative to it, some roundings of float32 and, for
    # a large eps, nothing else.
    assert norm.eps == pytest.approx(expected.eps, rel=1e-4)
    assert (norm.centred, norm.weight, norm.bias, norm.plus_one) == (
        expected.centred,
        expected.weight,
        expected.bias,
        expected.plus_one,
    )


def test_an_eps_that_the_module_has_is_taken_as_it_is() -> None:
    module = Written(lambda m, x: m.weight * rms(x, m.epsilon), "weight")
    module.epsilon = 3e-5
    norm = written_norm(module)
    assert norm is not None
    assert norm.eps == 3e-5


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_norm_of_the_last_dimension_is_none(name: str) -> None:
    assert written_norm(OTHERS[name]) is None


@each_norm
@pytest.mark.parametrize(
    ("dtype", "wide"),
    [(torch.float64,) * 2, (torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32)],
)
def test_forward_is_the_modules_own_and_gradients_are_autograds(
    name: str, dtype: torch.dtype, wide: torch.dtype
) -> None:
    torch.manual_seed(0)
    module = NORMS[name][0].to(wide)
    x = (torch.randn(9, 5, WIDTH) + 0.5).to(dtype).requires_grad_()

    def run() -> tuple[Tensor, list[Tensor]]:
        y = module(x)
        return y, list(torch.autograd.grad(y.float().sin().sum(), [x, *module.parameters()]))

    y, exact = run()
    forward = Approximate(module, Compressed(scheme="fused")).install()
    try:
        ours, got = run()
    finally:
        forward.remove(name)
    module.float()
    assert torch.equal(ours, y)
    assert ours.dtype == y.dtype
    # The whole copy is rounded to the dtype of x; a gain's gradient sums 45 of its products, with gradients of order 1.
    # For float64, too, the module computes in float32.
    bound = 64 * max(torch.finfo(precision).eps for precision in (dtype, torch.float32))
    for gradient, exact_gradient in zip(got, exact, strict=True):
        assert gradient.dtype == exact_gradient.dtype
        assert (gradient - exact_gradient).abs().max() <= bound * (1 + exact_gradient.abs().max())


@each_norm
def test_a_model_with_such_norms_keeps_less_and_is_put_back(name: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), NORMS[name][0], nn.Linear(WIDTH, 8))
    x = torch.randn(64, WIDTH, requires_grad=True)
    y, before = net(x), saved_bytes(net, x).total
    report = convert(net, "approx-backprop", inputs=x)
    assert not report.left
    assert torch.equal(net(x), y)
    # The norm's input in 8 bits, minimum and scale of its groups, 1/std: less than half of one float32 tensor.
    assert saved_bytes(net, x).total < before - 0.5 * 4 * x.numel()
    report.revert()
    assert all("forward" not in vars(module) for module in net.modules())


def test_what_is_called_a_norm_and_is_left_says_why() -> None:
    class ScaledNorm(Written):
        pass

    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), ScaledNorm(OTHERS["a scale"].formula, "weight"))
    (left,) = convert(net, "approx-backprop").left
    assert (left.name, left.was) == ("1", "ScaledNorm")
    assert "it is no layer or RMS norm of the last dimension" in left.reason
    assert "it is no batch" in why_not(nn.Embedding(3, 4))


def test_what_keeps_whole_tensors_is_in_the_report() -> None:
    class Squared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)

        def forward(self, x: Tensor) -> Tensor:
            h = self.up(x)
            return self.down(h * h.flip(0))

    x = torch.randn(64, WIDTH, requires_grad=True)
    text = str(convert(Squared(), "approx-backprop", inputs=x))
    assert "Kept whole, by operations without a rule:\n- (model), mul: 24.0 KiB" in text


def test_norm_linear_refuses_a_norm_with_a_forward_of_its_own() -> None:
    class Other(nn.LayerNorm):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).to(input.dtype)

    assert written_norm(Other(WIDTH)) is not None
    with pytest.raises(KernelError, match="forward of its own"):
        NormLinear(Other(WIDTH), nn.Linear(WIDTH, 2))


@pytest.mark.slow
def test_a_norm_that_is_written_out_is_compiled_in_one_graph() -> None:
    torch.manual_seed(0)
    net: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), NORMS["1 + w"][0], nn.Linear(WIDTH, 8))
    x = torch.randn(16, WIDTH)
    convert(net, "approx-backprop", inputs=x)
    exact = torch.autograd.grad(net(x).sin().sum(), list(net.parameters()))
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), net(x))
    got = torch.autograd.grad(compiled(x).sin().sum(), list(net.parameters()))
    for gradient, exact_gradient in zip(got, exact, strict=True):
        torch.testing.assert_close(gradient, exact_gradient)


class Caching(nn.Module):
    """In evaluation mode it caches its weight in the dtype of its input; it counts its calls."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))
        self.cache: dict[torch.dtype, Tensor] = {}
        self.calls: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(x.dim())
        weight = self.weight if self.training else self.cache.setdefault(x.dtype, self.weight.detach())
        return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


def test_what_a_module_holds_is_not_touched_by_judging_it() -> None:
    norm = Caching(32)
    written_norm(norm)
    assert (norm.cache, norm.calls) == ({}, [])
