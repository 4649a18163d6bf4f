"""What would be magnified beside something exact: outputs, rounded numbers, probabilities, rows without variance."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit.kernels.compression.crossing import Crossing
from tests.kernels.compression.graphs import compiled, error, partitioner

pytestmark = pytest.mark.usefixtures("small_and_seeded")

ERROR = 0.01  # of a gradient by 8 bits; that of a plain hook, which codes each saved tensor alone, is 0.1 to 0.5 %


def compared(model: nn.Module, loss: Callable[[Callable[..., Tensor]], Tensor]) -> tuple[float, list[Crossing]]:
    """The error of the gradient by 8 bits, and what crosses."""
    cut, weights = partitioner(bits=8), list(model.parameters())
    run = compiled(model, cut)
    coded, exact = (list(torch.autograd.grad(loss(call), weights)) for call in (run, model))
    return error(coded, exact), list(cut.graphs[0].crossings)


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


class Viewed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sigmoid().view(8, 32, 64).transpose(0, 1)


LAST: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]] = {
    "sigmoid": (nn.Sigmoid(), lambda p: F.binary_cross_entropy(p, p.detach().round())),
    "softmax": (nn.Softmax(-1), lambda p: -(p[:, 0] + 1e-8).log().mean()),
    "exp": (Exponential(), lambda y: (y + 1e-3).log().square().mean()),
    "tanh": (nn.Tanh(), lambda y: (1 - y * y + 1e-6).log().mean()),
    "a view of a sigmoid": (Viewed(), lambda p: F.binary_cross_entropy(p, p.detach().round())),
}


@pytest.mark.parametrize("deviation", [3, 8])
@pytest.mark.parametrize("name", LAST)
def test_backward_reads_the_output_that_its_caller_holds(name: str, deviation: float) -> None:
    """The loss divides by it."""
    last, loss = LAST[name]
    model, x = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), last), torch.randn(256, 64)
    with torch.no_grad():
        model[2].weight.mul_(deviation / 0.2)
    off, rows = compared(model, lambda run: loss(run(x)))
    assert off < ERROR
    assert [row.reason for row in rows if row.form == "whole"] == ["forward returns it"]
    assert [row.form for row in rows if row.form != "whole"] == ["8 bits"]


class Made(nn.Module):
    """Returns what is made of a function that saturates."""

    def __init__(self, made: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.made = made

    def forward(self, x: Tensor) -> Tensor:
        return self.made(25 * x)


MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "casts": lambda h: h.sigmoid().double().float(),
    "cat": lambda h: torch.cat([h[:, :32].sigmoid(), h[:, 32:].softmax(-1)], 1),
    "square": lambda h: h.sigmoid().square(),
    "mean": lambda h: (h.softmax(-1) + h.flip(1).softmax(-1)) / 2,
    "scaled": lambda h: 0.9 * h.sigmoid() + 1e-6,
    "gather": lambda h: h.sigmoid().gather(1, torch.arange(64).flip(0).expand(256, 64)),
    "transposed": lambda h: h.sigmoid().t().contiguous().t(),
    "elu": lambda h: F.elu(h) + 1,
    "by hand": lambda h: 1 / (1 + (-h).exp()),
    "root": lambda h: h.sigmoid().square().sqrt(),
    "masked": lambda h: h.softmax(-1) * torch.linspace(0.1, 1, 64),
}


@pytest.mark.parametrize("name", MADE)
def test_the_caller_holds_what_is_made_of_probabilities(name: str) -> None:
    model, x = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), Made(MADE[name])), torch.randn(256, 64)
    off, rows = compared(model, lambda run: -(run(x) + 1e-12).log().mean())
    assert off < ERROR
    assert "forward returns what is made of it, or backward divides by that" in {row.reason for row in rows}


@pytest.mark.parametrize("last", [nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Mish()])
def test_activations_that_gate_themselves_are_coded_where_they_are_returned(last: nn.Module) -> None:
    model, x = nn.Sequential(nn.Linear(64, 128), last), torch.randn(256, 64)
    off, rows = compared(model, lambda run: run(x).square().sum())
    assert off < ERROR
    assert [row.form for row in rows] == ["8 bits"]


class Phases(nn.Module):
    """Periodic features of phases that are many turns."""

    def __init__(self, wave: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.hidden, self.out, self.wave = nn.Linear(64, 128), nn.Linear(128, 64), wave

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.wave(300 * self.hidden(x)))


@pytest.mark.parametrize("wave", [torch.sin, torch.cos, lambda h: h.sin() * h.cos(), lambda h: (h + h.sin()).cos()])
def test_phases_of_many_turns(wave: Callable[[Tensor], Tensor]) -> None:
    """A step of a phase's code may be a turn."""
    x, weights = torch.randn(256, 64), torch.randn(256, 64)
    assert compared(Phases(wave), lambda run: (run(x) * weights).sum())[0] < ERROR


def test_of_a_rectifier_that_is_returned_a_mask_crosses() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()), torch.randn(64, 64)
    off, rows = compared(model, lambda run: run(x).square().sum())
    assert off < 1e-6
    assert [row.form for row in rows] == ["1 bit"]


class Warp(nn.Module):
    """Samples features where a learned flow points."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.flow = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.features(x))
        axis = torch.linspace(-1, 1, x.shape[-1])
        base = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)
        return F.grid_sample(h, base + 0.5 * self.flow(h).permute(0, 2, 3, 1), align_corners=True)


class Interpolated(nn.Module):
    """Interpolates a table of 1000 numbers at computed places, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.table = nn.Linear(48, 48), nn.Parameter(torch.randn(1000))

    def forward(self, x: Tensor) -> Tensor:
        place = (200 * self.places(x) + 500).clamp(0, 998)
        floor = place.floor()
        share, index, values = place - floor, floor.long(), self.table.sin()
        return values[index] * (1 - share) + values[index + 1] * share


class Splat(nn.Module):
    """Adds values to the two cells beside a computed place."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.values = nn.Linear(48, 48), nn.Linear(48, 48)

    def forward(self, x: Tensor) -> Tensor:
        place, values = (100 * self.places(x) + 500).clamp(0, 998), self.values(x).tanh()
        cell = place.trunc()
        share, index = place - cell, cell.to(torch.int64)
        cells = x.new_zeros(*x.shape[:-1], 1000)
        return cells.scatter_add(-1, index, values * (1 - share)).scatter_add(-1, index + 1, values * share)


class Quantised(nn.Module):
    """A learned step: its gradient is what rounding changes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.step = nn.Linear(48, 48), nn.Parameter(torch.tensor(0.003))

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x) / self.step
        return (h + (h.round() - h).detach()) * self.step


@pytest.mark.parametrize("make", [Warp, Interpolated, Splat, Quantised])
def test_what_is_rounded_or_points_somewhere_is_exact(make: type[nn.Module]) -> None:
    x = F.interpolate(torch.randn(4, 3, 12, 12), 48, mode="bicubic")
    weights = torch.randn(4, 16 if make is Warp else 3, 48, 1000 if make is Splat else 48)
    off, rows = compared(make(), lambda run: (run(x) * weights).sum())
    assert off < ERROR
    assert "backward rounds it, or computes an index" in {row.reason for row in rows}


class Head(nn.Module):
    """Softmax whose probabilities are nearly 1 or 0, as after training."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.hidden, self.out, self.loss = nn.Linear(64, 128), nn.Linear(128, 512), loss

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.out(self.hidden(x).tanh()), target)


def hooked(x: Tensor) -> Tensor:
    """What a plain hook makes of a saved tensor, by 8 bits and groups of 64."""
    if not x.is_floating_point() or isinstance(x, nn.Parameter) or x.numel() % 64:
        return x
    groups = x.detach().reshape(-1, 64)
    low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    step = ((high - low) / 255).clamp(min=1e-38)
    return (((groups - low) / step).round() * step + low).view(x.shape)


def trained(steps: int, loss: Callable[..., Tensor] = F.cross_entropy) -> tuple[float, float]:
    """Errors of a head's gradient after some steps: coded, and by a plain hook."""
    torch.manual_seed(0)
    model, x = Head(loss), torch.randn(512, 64)
    target, weights = torch.randint(512, (512,)), list(model.parameters())
    optimizer = torch.optim.Adam(weights, 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x, target).backward()
        optimizer.step()
    exact = list(torch.autograd.grad(model(x, target), weights))
    with torch.autograd.graph.saved_tensors_hooks(hooked, lambda x: x):
        plain = list(torch.autograd.grad(model(x, target), weights))
    return compared(model, lambda run: run(x, target))[0], error(plain, exact)


@pytest.mark.parametrize("steps", [0, 10])
def test_probabilities_of_a_head(steps: int) -> None:
    """As near as by a plain hook, which codes their logarithms: codes of p itself err by twice as much after steps."""
    coded, plain = trained(steps)
    assert coded < plain < ERROR


def cross_entropy_by_hand(logits: Tensor, target: Tensor) -> Tensor:
    return (logits.logsumexp(-1) - logits.gather(-1, target[:, None])[:, 0]).mean()


@pytest.mark.parametrize("loss", [F.cross_entropy, cross_entropy_by_hand])
def test_probabilities_of_a_head_that_errs_no_more(loss: Callable[..., Tensor]) -> None:
    """p - 1 of the targets is small, but not in its error: p is exact."""
    assert trained(30, loss)[0] < ERROR


class Masked(nn.Module):
    """Tokens of a masked autoencoder: the mask token's row has no variance, and a norm magnifies its error."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.token, self.embed, self.norm = nn.Parameter(torch.zeros(width)), nn.Linear(64, width), nn.LayerNorm(width)
        self.hidden, self.out = nn.Linear(width, 2 * width), nn.Linear(2 * width, 64)

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        h = torch.where(kept[..., None], self.embed(x), self.token)
        return self.out(F.gelu(self.hidden(self.norm(h))))


@pytest.mark.parametrize("level", [0, 1.1])
@pytest.mark.parametrize("width", [256, 128, 80, 16])
def test_rows_without_variance(width: int, level: float) -> None:
    model, x, kept = Masked(width), torch.randn(4, 100, 64), torch.rand(4, 100) < 0.25
    with torch.no_grad():
        model.token.fill_(level)
    target = torch.randn(4, 100, 64)
    assert compared(model, lambda run: (run(x, kept) - target).square().mean())[0] < ERROR
