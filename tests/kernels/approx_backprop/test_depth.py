"""What the paper claims: with 4 bits for backward only, errors of gradients do not grow with depth."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.training.data import digits
from kernels import convert

BATCH = 64
pytestmark = pytest.mark.slow


class Bottleneck(nn.Module):
    """Three times norm, ReLU and convolution, plus a shortcut: halved by the mean over a view, widened by zeros."""

    def __init__(self, inward: int, outward: int, stride: int) -> None:
        super().__init__()
        layers, middle = [], outward // 4
        for wide, narrow, size, step in ((inward, middle, 1, 1), (middle, middle, 3, stride), (middle, outward, 1, 1)):
            convolution = nn.Conv2d(wide, narrow, size, step, padding=size // 2, bias=False)
            layers += [nn.BatchNorm2d(wide), nn.ReLU(), convolution]
        self.layers, self.stride, self.wider = nn.Sequential(*layers), stride, outward - inward

    def forward(self, x):
        n, channels, height, width = x.shape
        past = x.view(n, channels, height // self.stride, self.stride, width // self.stride, self.stride).mean((3, 5))
        return self.layers(x) + F.pad(past, (0, 0, 0, 0, 0, self.wider))


def resnet(blocks: int, width: int = 8) -> nn.Sequential:
    """The paper's net of 9 * `blocks` + 2 layers."""
    widths = [width, *(4 * width * 2**stage for stage in range(3) for _ in range(blocks))]
    first = {blocks, 2 * blocks}
    body = [Bottleneck(*pair, 2 if at in first else 1) for at, pair in enumerate(pairwise(widths))]
    ends = nn.BatchNorm2d(widths[-1]), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)
    net = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), *body, *ends)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return net


def gradients(net: nn.Module) -> list[list[torch.Tensor]]:
    """Of the layers' weights, for three batches."""
    drawn, data = torch.Generator().manual_seed(0), digits(torch.device("cpu"))
    weights = [weight for weight in net.parameters() if weight.dim() > 1]
    batches = [data.batch(BATCH, drawn) for _ in range(3)]
    return [list(torch.autograd.grad(F.cross_entropy(net(x), target), weights)) for x, target in batches]


@pytest.mark.parametrize("blocks", [2, 6, 18])
def test_errors_of_gradients_do_not_grow_with_depth_and_stay_below_the_noise_of_batches(blocks):
    """The bounds hold for all depths; the first layer's gradient gathers the errors of all others."""
    torch.manual_seed(0)
    net = resnet(blocks)
    exact = gradients(net)
    assert len(exact[0]) == 9 * blocks + 2
    convert(net, "approx-backprop", bits=4)
    coded = gradients(net)
    stem = [float((a[0] - g[0]).norm() / g[0].norm()) for a, g in zip(coded, exact, strict=True)]
    assert 0.01 < sum(stem) / 3 <= 0.13
    for layer in range(len(exact[0])):
        of_layer = torch.stack([g[layer] for g in exact])
        noise = of_layer.sub(of_layer.mean(0)).square().sum() / 2
        error = sum((a[layer] - g[layer]).square().sum() for a, g in zip(coded, exact, strict=True)) / 3
        assert noise >= 8 * error  # squares: a batch adds three times as much as codes do
