"""With exact codes every gradient is stock's: functions of activations, also in place, and losses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.eager import watching
from tests.kernels.eager.nets import Net, assert_same, converted, error, gradients, of_activations

MODULES = {
    **{name: getattr(nn, name) for name in ("ReLU", "ReLU6", "Hardtanh", "Hardswish", "Hardsigmoid", "LeakyReLU")},
    **{name: getattr(nn, name) for name in ("ELU", "SELU", "CELU", "Mish", "SiLU", "RReLU")},
    **{name: getattr(nn, name) for name in ("GELU", "Softplus", "Softsign", "Tanhshrink", "Softshrink", "Hardshrink")},
    **{name: getattr(nn, name) for name in ("LogSigmoid", "PReLU", "Sigmoid", "Tanh")},
    "Threshold": lambda **options: nn.Threshold(0.1, 0.0, **options),
    "Softmax": lambda: nn.Softmax(-1),
    "LogSoftmax": lambda: nn.LogSoftmax(-1),
}
IN_PLACE = [*list(MODULES)[:12], "Threshold"]
BEFORE = {"": nn.Identity(), "gelu": nn.GELU(), "norm": nn.LayerNorm(64)}


@pytest.mark.usefixtures("exact_codes")
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("name", MODULES)
def test_activation_functions(name: str, before: str) -> None:
    net = nn.Sequential(nn.Linear(32, 64), BEFORE[before], MODULES[name](), nn.GELU(), nn.Linear(64, 4))
    assert_same(net, torch.randn(16, 32))
    if name in IN_PLACE:
        net[2] = MODULES[name](inplace=True)
        assert_same(net, torch.randn(16, 32))


INDEX = torch.arange(16) // 2
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "clamp": lambda h: h.clamp(-0.5, 0.5),
    "abs": torch.abs,
    "max of rows": lambda h: h.max(-1)[0],
    "max": lambda h: h.max(),
    "amax": lambda h: h.amax(-1),
    "maximum": lambda h: torch.maximum(h, -0.3 * h),
    "topk": lambda h: h.topk(5)[0],
    "sort": lambda h: h.sort()[0],
    "cummax": lambda h: h.cummax(-1)[0],
    "median": lambda h: h.median(-1)[0],
    "quotient": lambda h: h / (h.square() + 1),
    "quotient of halves": lambda h: torch.div(*(h.exp() + 1).chunk(2, -1)),
    "quotient of itself": lambda h: h / h,
    "inverse": lambda h: h / (1 / (h * h + 1)),
    "sqrt": lambda h: (h * h + 1).sqrt() * (h * h + 1).rsqrt(),
    "log": lambda h: (h * h + 1).log() + h.abs().log1p(),
    "pow 1.5": lambda h: (h * h + 0.1) ** 1.5,
    "pow 3": lambda h: h**3,
    "pow -2": lambda h: (h * h + 0.1).pow(exponent=-2),
    "pow of tensors": lambda h: (h * h + 0.1) ** h,
    "float_power": lambda h: torch.float_power(h * h + 0.1, 0.5),
    "2^": lambda h: 2**h,
    "exp": lambda h: torch.exp(h) + torch.expm1(h),
    "logsumexp": lambda h: h.logsumexp(-1),
    "norm": lambda h: h.norm(dim=-1) + h.norm(1, -1) + torch.linalg.vector_norm(h, 3, -1),
    "normalize": F.normalize,
    "std": lambda h: h.std(-1) + h.var(-1),
    "similarity": lambda h: F.cosine_similarity(h[:8], h[8:]),
    "cdist": lambda h: torch.cdist(h, 2 * h),
    "prod": lambda h: h[:, :8].prod(-1) + h[:, :4].cumprod(-1)[:, 0],
    "cumsum": lambda h: h.cumsum(-1) * h,
    "where": lambda h: torch.where(h > 0, h, h * h),
    "relu squared": lambda h: F.relu(h).square(),
    "sin": lambda h: torch.sin(h) * h,
    "atan2": lambda h: torch.atan2(h, h.roll(1)),
    "products": lambda h: torch.einsum("ij,kj->ik", h, h) + h @ h.T,
    "outer product": lambda h: h[:, None] * h[None],
    "mask": lambda h: h * (h > 0).float(),
    "gather": lambda h: h.gather(1, INDEX[:, None]) * h[INDEX],
    "cat": lambda h: torch.cat([h, 2 * h]) * torch.stack([h, F.gelu(h)]).flatten(0, 1),
    "addcmul": lambda h: torch.addcmul(h, h, h) + torch.lerp(h, 2 * h, h),
    "written softmax": lambda h: (lambda e: e / e.sum(-1, keepdim=True) * h)(torch.exp(h - h.amax(-1, keepdim=True))),
    "written swish": lambda h: h / (1 + torch.exp(-h)),
    "fft": lambda h: torch.fft.rfft(h).abs(),
    "complex": lambda h: torch.view_as_complex(h.view(16, 32, 2)) * torch.complex(h, h * h).exp()[:, :32].conj(),
    "solve": lambda h: torch.linalg.solve(h.T @ h + 10 * torch.eye(64), h.T),
}


@pytest.mark.usefixtures("exact_codes")
@pytest.mark.parametrize("saved", [False, True], ids=["", "saved before"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, saved: bool) -> None:
    assert_same(of_activations(FUNCTIONS[name], saved), torch.randn(16, 32))


SHARP = ["quotient of halves", "sqrt", "log", "pow 1.5", "float_power", "norm", "atan2", "written swish", "prod"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", [*SHARP, "quotient", "std", "cdist", "logsumexp", "written softmax"])
def test_functions_that_would_turn_small_errors_into_large_ones(name: str) -> None:
    """Divisors in their backward are exact, so errors are a few steps of 1/255 of a group's range."""
    net, x = of_activations(FUNCTIONS[name], saved=True), torch.randn(16, 32)
    assert error(gradients(converted(net, bits=8), x)[1], gradients(net, x)[1]) < 8 / 255


TARGET = torch.arange(16) * 3
IGNORED = TARGET.where(TARGET % 2 == 0, -100)
SOFT = torch.softmax(torch.randn(16, 64, generator=torch.Generator().manual_seed(0)), -1)
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "nll": lambda h: F.nll_loss(F.log_softmax(h, -1), TARGET),
    "nll, weights": lambda h: F.nll_loss(F.log_softmax(h, -1), IGNORED, weight=torch.arange(64.0)),
    "nll of copied targets": lambda h: F.nll_loss(F.log_softmax(h, -1), IGNORED.repeat(2)[:16].clone()),
    "cross-entropy": lambda h: F.cross_entropy(h, IGNORED),
    "cross-entropy, smooth": lambda h: F.cross_entropy(h, IGNORED, torch.arange(64.0), label_smoothing=0.1),
    "cross-entropy, soft": lambda h: F.cross_entropy(h, SOFT, label_smoothing=0.1),
    "cross-entropy of two": lambda h: F.cross_entropy(h, torch.softmax(2 * h, -1)),
    "kl": lambda h: F.kl_div(F.log_softmax(h, -1), torch.softmax(2 * h, -1), reduction="sum"),
    "entropy": lambda h: (torch.softmax(4 * h, -1) * torch.log_softmax(4 * h, -1)).sum(-1),
    "weighted": lambda h: (torch.sigmoid(h) * torch.log_softmax(4 * h, -1)).sum(-1),
    "binary": lambda h: F.binary_cross_entropy(torch.sigmoid(h), SOFT),
    "binary, logits": lambda h: F.binary_cross_entropy_with_logits(h, SOFT),
    "huber": lambda h: F.huber_loss(h, SOFT) + F.smooth_l1_loss(h, SOFT) + F.l1_loss(h, SOFT) + F.mse_loss(h, SOFT),
    "cosine": lambda h: F.cosine_embedding_loss(h[:8], h[8:], torch.ones(8)),
    "triplet": lambda h: F.triplet_margin_loss(h[:4], h[4:8], h[8:12]),
    "gauss": lambda h: F.gaussian_nll_loss(h[:8], SOFT[:8], F.softplus(h[8:])),
    "poisson": lambda h: F.poisson_nll_loss(F.softplus(h), SOFT, log_input=False),
}


@pytest.mark.usefixtures("exact_codes")
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    assert_same(of_activations(LOSSES[name], saved=True), torch.randn(16, 32))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"entropy"}))  # most of whose gradient cancels
def test_losses_by_real_codes(name: str) -> None:
    """No probability that is decoded as 0 is a divisor or goes into a logarithm."""
    net, x = of_activations(LOSSES[name]), torch.randn(16, 32)
    assert error(gradients(converted(net, bits=8), x)[1], gradients(net, x)[1]) < 8 / 255


@pytest.mark.usefixtures("exact_codes")
def test_a_loss_of_images() -> None:
    target = torch.arange(4 * 64).view(4, 8, 8) % 8
    for loss in (F.cross_entropy, lambda h, target: F.nll_loss(F.log_softmax(h, 1), target)):
        net = Net(lambda net, x, loss=loss: loss(net[0](x), target), nn.Conv2d(3, 8, 3, padding=1))
        assert_same(net, torch.randn(4, 3, 8, 8))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.GroupNorm(4, 8)], ids=["layer_norm", "group_norm"])
def test_statistics_of_few_features_stay_as_they_are(norm: nn.Module) -> None:
    """Mean and deviation have an eighth or half of a row's elements, but are not taken for a copy of it."""
    net = nn.Sequential(nn.Linear(8, 8), norm, nn.Linear(8, 8))
    with watching() as whole:
        converted(net)(torch.randn(512, 8))
    assert [tensor.reason for tensor in whole.values()].count("a statistic") == 2
