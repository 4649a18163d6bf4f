"""Functions and losses, in models and outside of them: no error of a code is magnified, and exact is bit for bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.kernels.graph.conformance import Net, assert_kept, cases, error, outcome, tensors
from tests.kernels.graph.nets import pair

INDEX = torch.arange(16) // 2

# Of activations [16, 64]; functions by themselves are in test_op_db.
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "clamp": lambda h: h.clamp(-0.5, 0.5),
    "frexp": lambda h: torch.frexp(h)[0].square(),
    "quotient": lambda h: h / (h.square() + 1),
    "quotient of halves": lambda h: torch.div(*(h.exp() + 1).chunk(2, -1)),
    "roots": lambda h: (h * h + 1).sqrt() - (h * h + 1).rsqrt() + (h * h + 1).log() + h.abs().log1p(),
    "pow 1.5": lambda h: (h * h + 0.1) ** 1.5,
    "pow -2": lambda h: (h * h + 0.1).pow(exponent=-2),
    "norms": lambda h: h.norm(dim=-1) + h.norm(1, -1) + torch.linalg.vector_norm(h, 3, -1),
    "normalize": F.normalize,
    "deviation": lambda h: h.std(-1) + h.var(-1),
    "sin": lambda h: torch.sin(20 * h) * h,
    "products": lambda h: torch.einsum("ij,kj->ik", h, h) + h @ h.T,
    "gather": lambda h: h.gather(1, INDEX[:, None]) * h[INDEX],
    "cat": lambda h: torch.cat([h, 2 * h]) * torch.stack([h, F.gelu(h)]).flatten(0, 1),
    "written softmax": lambda h: (lambda e: e / e.sum(-1, keepdim=True) * h)(torch.exp(h - h.amax(-1, keepdim=True))),
    "written swish": lambda h: h / (1 + torch.exp(-h)),
    "in place": lambda h: torch.relu_(input=(h * 2).add_(1).clamp_(-3, 3)),
    "in place on parts": lambda h: (lambda a, b: a.mul_(2).sin() * b.mul_(3).sin())(*torch.unsafe_chunk(h * 1, 2, -1)),
    "complex": lambda h: torch.view_as_complex(h.view(16, 32, 2)) * torch.complex(h, h * h).exp()[:, :32].conj(),
    "vmap": lambda h: torch.vmap(lambda row: F.gelu(row) * row)(h),
    "jvp": lambda h: torch.func.jvp(F.gelu, (h,), (torch.ones_like(h),))[1],
}


@cases(FUNCTIONS, ["clamp", "frexp", "quotient of halves", "in place on parts"])
def test_functions(name: str) -> None:
    net = Net(lambda net, x: FUNCTIONS[name](net[0](x)), nn.Linear(32, 64))
    assert_kept(net, torch.randn(16, 32))


# PyTorch's own capture, and so torch.compile with "aot_eager", computes these by other operations than eager mode.
ROUNDED: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "prod": (Net(lambda net, x: net[0](x)[:, :8].prod(-1), nn.Linear(32, 64)), (16, 32)),
    "transposed": (Net(lambda net, x: net[0](x).sigmoid().t().contiguous().t(), nn.Linear(64, 64)), (256, 64)),
    "stft": (Net(lambda net, x: torch.stft(net[0](x), 16, return_complex=True).abs(), nn.Linear(32, 64)), (4, 32)),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A window was not provided")
@pytest.mark.parametrize("name", ROUNDED)
def test_what_is_exact_but_for_roundings(name: str) -> None:
    model, shape = ROUNDED[name]
    stock, ours, handle = pair(model)
    x = torch.randn(shape)
    got, expected = outcome(ours, x), outcome(stock, x)
    # Sums of 64 terms at most, in another order, of which each may be off by a unit in the last place.
    assert error(got, expected) < 64 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(got.results, expected.results)
    assert not handle.stock


TARGET = (torch.arange(256 * 64) % 3 == 0).float().view(256, 64)
CLASSES = torch.arange(256) % 64
IGNORED = CLASSES.where(CLASSES % 2 == 0, -100)
SOFT = torch.softmax(torch.randn(256, 64, generator=torch.Generator().manual_seed(0)), -1)


def focal(h: Tensor) -> Tensor:
    p = h.sigmoid()
    right = p * TARGET + (1 - p) * (1 - TARGET)
    return -((1 - right) ** 2) * (right + 1e-8).log()


def divergence(h: Tensor) -> Tensor:
    p, q = h.log_softmax(-1), h.roll(1, 0).log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {  # of logits [256, 64] with a deviation of 2.4
    "cross-entropy": lambda h: F.cross_entropy(h, IGNORED, torch.arange(64.0), label_smoothing=0.1),
    "nll": lambda h: F.nll_loss(F.log_softmax(h, -1), IGNORED, weight=torch.arange(64.0)),
    "binary": lambda h: F.binary_cross_entropy(h.sigmoid(), TARGET),
    "written binary": lambda h: -(TARGET * (h.sigmoid() + 1e-7).log() + (1 - TARGET) * (1 - h.sigmoid() + 1e-7).log()),
    "log softmax": lambda h: -(F.softmax(h, -1) + 1e-9).log()[:, :1],
    "log of few": lambda h: -F.softmax(h, -1).gather(1, CLASSES[:, None]).log(),
    "in place": lambda h: -(h * 1).sigmoid().add(1e-7).log_(),
    "tanh": lambda h: -(1 - torch.tanh(h).pow(2) + 1e-6).log(),
    "root": lambda h: (h * h + 1e-6).sqrt(),
    "power": lambda h: ((h - TARGET) ** 2 + 1e-6) ** 0.5,
    "kl": lambda h: F.kl_div((F.softmax(h, -1) + 1e-8).log(), TARGET, reduction="sum"),
    "divergence": divergence,
    "focal": focal,
    "reciprocal": lambda h: h.exp().reciprocal(),
    "view": lambda h: 1 / h.exp().view(64, 256).t(),
    "arc": lambda h: torch.acos(torch.tanh(h) * 0.9999),
    "waves": lambda h: (lambda phase: phase.sin() * phase.cos())(1000 * h + 5000),
}


def of_logits(function: Callable[[Tensor], Any]) -> Net:
    return Net(lambda net, x: function(12 * net[1](F.gelu(net[0](x)))), nn.Linear(64, 128), nn.Linear(128, 64))


@cases(LOSSES, ["binary", "log of few"])
def test_losses_in_the_model(name: str) -> None:
    assert_kept(of_logits(lambda h: LOSSES[name](h).mean()), torch.randn(256, 64))


class Slots:
    """An output whose tensor is found in no container."""

    def __init__(self, p: Tensor) -> None:
        self.p = p


def written(h: Tensor) -> Tensor:
    p = torch.zeros(256, 64)
    p[:, :32] = h[:, :32].sigmoid() * 1.0
    p[:, 32:] = h[:, 32:].sigmoid() * 1.0
    return p


RETURNED: dict[str, Callable[[Tensor], Any]] = {  # the loss, outside, divides by it
    "sigmoid": torch.sigmoid,
    "softmax": lambda h: F.softmax(h, -1),
    "dictionary": lambda h: {"a": {"b": (F.softmax(h, -1),)}},
    "object": lambda h: Slots(h.sigmoid()),
    "view": lambda h: F.softmax(h, -1).view(4, 64, -1).transpose(1, 2),
    "column": lambda h: F.softmax(h, -1)[:, :1],
    "clamped": lambda h: F.softmax(h, -1).clamp(1e-6, 1 - 1e-6),
    "rest": lambda h: 1 - F.softmax(h, -1) + 1e-7,
    "cat": lambda h: torch.cat([h[:, :32].sigmoid(), F.softmax(h[:, 32:], -1)], 1),
    "stack": lambda h: torch.stack([1 - h.sigmoid(), h.sigmoid()], 1),
    "product": lambda h: h.sigmoid() * h.flip(1).sigmoid(),
    "written out": lambda h: h.exp() / h.exp().sum(-1, keepdim=True),
    "gather": lambda h: h.sigmoid().gather(1, torch.arange(64).expand(256, 64).flip(1)),
    "where": lambda h: torch.where(h > 0, h.sigmoid(), h.sigmoid() + 1e-9),
    "written": written,
}


def logarithm(output: Any) -> Tensor:
    (p,) = tensors(getattr(output, "p", output))
    return -(p + 1e-12).log().mean()


@cases(RETURNED, ["clamped", "written"])
def test_losses_outside_of_the_model(name: str) -> None:
    assert_kept(of_logits(RETURNED[name]), torch.randn(256, 64), loss=logarithm)
