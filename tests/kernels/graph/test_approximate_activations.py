"""Approximate activations (Chakrabarti, Moseley 2019): codes, gradients, bytes, and what the paper claims."""

import copy
from itertools import pairwise

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import compress
from actfit.kernels.errors import KernelError
from actfit.kernels.methods.approximate_activations import fixed_range_error, reach, shrinkage, step
from tests.kernels.graph.nets import assert_same, batch, net

CHANNELS = 32
SHAPES = {
    "tokens": (70, CHANNELS),
    "sequences": (5, CHANNELS, 35),
    "pictures": (4, CHANNELS, 7, 7),
    "volumes": (4, CHANNELS, 3, 4, 5),
}


def codes(x: Tensor, bits: int) -> Tensor:
    """The values of codes of N(0, 1) by the definition, before they are divided."""
    half = 2 ** (bits - 1)
    return ((x / step(bits)).floor().clamp(-half, half - 1) + 0.5) * step(bits)


@pytest.mark.parametrize("bits", range(2, 9))
def test_shrinkage_and_error_are_those_of_a_normal_distribution(bits: int) -> None:
    """Against the definitions, by sums over quantiles of N(0, 1)."""
    count = 1 << 20
    x = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)
    values = codes(x, bits)
    # Quantiles in the middle of equal shares leave out some 4 / count of what lies in the tails.
    assert abs(float((x * values).mean()) - shrinkage(bits)) <= 20 / count * reach(bits)
    error = float((values / shrinkage(bits) - x).square().mean())
    assert abs(error - fixed_range_error(bits) ** 2) <= 100 / count * reach(bits)


class Layer(nn.Module):
    """A layer of the paper: norm, ReLU, and a product over channels."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[dims](CHANNELS)
        nn.init.uniform_(self.norm.weight, -1.5, 1.5)
        nn.init.normal_(self.norm.bias)
        self.weight = nn.Parameter(torch.randn(6, CHANNELS))
        self.to(torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("nc...,oc->no...", F.relu(self.norm(x)), self.weight)


def expected(layer: Layer, x: Tensor, grad: Tensor, bits: int) -> list[Tensor]:
    """Gradients of x, gain, bias and weight by eq. 5 to 8 of the paper, with approximate activations."""
    rows, grads = (part.movedim(1, -1).reshape(-1, part.shape[1]) for part in (x, grad))
    gain, bias, weight = (parameter.detach() for parameter in (layer.norm.weight, layer.norm.bias, layer.weight))
    invstd = torch.rsqrt(rows.var(0, unbiased=False) + layer.norm.eps)
    exact = (rows - rows.mean(0)) * invstd
    a = codes(exact, bits) / shrinkage(bits)
    g = (grads @ weight) * (exact * gain + bias > 0)
    dx = (g - g.mean(0) - a * (g * a).mean(0)) * gain * invstd
    dx = dx.view(x.shape[0], *x.shape[2:], CHANNELS).movedim(-1, 1)
    return [dx, (g * a).sum(0), g.sum(0), grads.t() @ F.relu(a * gain + bias)]


@pytest.mark.parametrize(("shape", "bits"), [("tokens", 2), ("sequences", 4), ("pictures", 4), ("volumes", 8)])
def test_gradients_are_those_of_the_paper(shape: str, bits: int) -> None:
    layer, sizes = Layer(len(SHAPES[shape])), SHAPES[shape]
    stock, handle = copy.deepcopy(layer), compress(layer, policy=f"approximate-activations-{bits}")
    formats = torch.contiguous_format, torch.channels_last if shape == "pictures" else torch.contiguous_format
    for rows, memory_format in zip((sizes[0], sizes[0] + 3), formats, strict=True):
        x = (2 * torch.randn(rows, *sizes[1:], dtype=torch.float64) + 1).to(memory_format=memory_format)
        y = layer(x.requires_grad_())
        assert torch.equal(y, stock(x))
        grad = torch.randn(y.shape, dtype=torch.float64)
        made = torch.autograd.grad(y, [x, layer.norm.weight, layer.norm.bias, layer.weight], grad)
        for got, want in zip(made, expected(layer, x.detach(), grad, bits), strict=True):
            # Sums of some hundred products in another order.
            assert (got - want).abs().max() <= 1e4 * torch.finfo(torch.float64).eps * want.abs().max()
    assert not handle.stock
    assert f"{bits} bits" in str(handle)


def test_bytes_are_as_predicted() -> None:
    layer = Layer(4).float()
    handle = compress(layer, policy="approximate-activations-4")
    x = torch.randn(8, CHANNELS, 8, 8)
    layer(x.requires_grad_()).sum().backward()
    kept = {row.form: row.after for graph in handle.report.graphs for row in graph.crossings if row.form != "whole"}
    # An element: 4 bits, and one for the side of the ReLU; a channel: two ends in float32.
    assert kept == {"4 bits": x.numel() // 2 + 8 * CHANNELS, "1 bit": x.numel() // 8}


def test_all_else_is_saved_by_groups() -> None:
    """Norms of rows, and batch norms that run by averages."""
    frozen = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64).eval(), nn.ReLU(), nn.Linear(64, 64))
    for model in (net(), frozen):
        other = copy.deepcopy(model)
        compress(model, policy="approximate-activations-4")
        compress(other, bits=4)
        for made in (model, other):
            made(batch()).square().mean().backward()
        assert_same(model, other)


def test_rounding_does_not_go_with_a_policy() -> None:
    with pytest.raises(KernelError, match=r"rounding must be None with policy='approximate-activations-4'"):
        compress(net(), policy="approximate-activations-4", rounding="stochastic")


class Bottleneck(nn.Module):
    """Three times norm, ReLU and convolution, plus a shortcut: halved by the mean over a view, widened by zeros."""

    def __init__(self, inward: int, outward: int, stride: int) -> None:
        super().__init__()
        layers, middle = [], outward // 4
        for wide, narrow, size, stepped in (
            (inward, middle, 1, 1),
            (middle, middle, 3, stride),
            (middle, outward, 1, 1),
        ):
            convolution = nn.Conv2d(wide, narrow, size, stepped, padding=size // 2, bias=False)
            layers += [nn.BatchNorm2d(wide), nn.ReLU(), convolution]
        self.layers, self.stride, self.wider = nn.Sequential(*layers), stride, outward - inward

    def forward(self, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        past = x.view(n, channels, height // self.stride, self.stride, width // self.stride, self.stride).mean((3, 5))
        made: Tensor = self.layers(x) + F.pad(past, (0, 0, 0, 0, 0, self.wider))
        return made


def resnet(blocks: int, width: int = 8) -> nn.Sequential:
    """The paper's net of 9 * `blocks` + 2 layers."""
    torch.manual_seed(0)
    widths = [width, *(4 * width * 2**stage for stage in range(3) for _ in range(blocks))]
    first = {blocks, 2 * blocks}
    body = [Bottleneck(*pair, 2 if at in first else 1) for at, pair in enumerate(pairwise(widths))]
    ends = nn.BatchNorm2d(widths[-1]), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)
    made = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), *body, *ends)
    for module in made.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return made


def gradients(model: nn.Module) -> list[list[Tensor]]:
    """Of the layers' weights, for three batches of handwritten digits."""
    pictures, targets = load_digits(return_X_y=True)
    x = torch.tensor(pictures, dtype=torch.float32).view(-1, 1, 8, 8)
    x, drawn = (x - x.mean()) / x.std(), torch.Generator().manual_seed(0)
    weights = [weight for weight in model.parameters() if weight.dim() > 1]
    batches = [torch.randint(len(x), (64,), generator=drawn) for _ in range(3)]
    losses = (F.cross_entropy(model(x[places]), torch.tensor(targets)[places]) for places in batches)
    return [list(torch.autograd.grad(loss, weights)) for loss in losses]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"policy": "approximate-activations-4"}, {"bits": 4}], ids=str)
def test_errors_do_not_compound_with_depth_and_stay_below_the_noise_of_batches(options):
    """The bounds are those of two blocks a stage; the first layer's gradient gathers the errors of all others."""
    blocks = 6
    model = resnet(blocks)
    exact = gradients(model)
    assert len(exact[0]) == 9 * blocks + 2
    compress(model, **options)
    coded = gradients(model)
    stem = [float((a[0] - g[0]).norm() / g[0].norm()) for a, g in zip(coded, exact, strict=True)]
    assert 0.01 < sum(stem) / 3 <= 0.13
    for layer in range(len(exact[0])):
        of_layer = torch.stack([g[layer] for g in exact])
        noise = of_layer.sub(of_layer.mean(0)).square().sum() / 2
        error = sum((a[layer] - g[layer]).square().sum() for a, g in zip(coded, exact, strict=True)) / 3
        assert noise >= 8 * error  # squares: a batch adds three times as much as codes do
