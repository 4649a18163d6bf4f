"""The models of `benchmarks.training` whose layers save few bits: pre-activation ResNets and a ViT, for 8x8 images.

They consist of torch modules that `kernels.convert` knows; the caller makes the norms. Code outside modules saves
nothing for backward: a shortcut halves the size by the mean over a view, and adds channels of zeros.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.training.models import Call, Layer, plainly

Norm = Callable[[int], nn.Module]  # of a number of channels
STAGES = 3  # of a ResNet: each has twice the channels of the one before, and half the height and width
NARROWER = 4  # times: the ends of a bottleneck over its middle
PATCH, PLACES = 2, 16  # for a ViT: pixels along a patch, patches in an image


class Bottleneck(nn.Module):
    """Three times norm, ReLU and convolution, the second of 3x3, plus a shortcut without parameters."""

    def __init__(self, inward: int, outward: int, stride: int, norm: Norm) -> None:
        super().__init__()
        middle = outward // NARROWER
        self.first = _layer(inward, middle, 1, 1, norm)
        self.second = _layer(middle, middle, 3, stride, norm)
        self.third = _layer(middle, outward, 1, 1, norm)
        self.stride, self.wider = stride, outward - inward

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.third(self.second(self.first(x)))
        if self.stride > 1:
            n, channels, height, width = x.shape
            halves = (height // self.stride, self.stride, width // self.stride, self.stride)
            x = x.view(n, channels, *halves).mean((3, 5))  # F.avg_pool2d would save x
        if self.wider:
            x = F.pad(x, (0, 0, 0, 0, 0, self.wider))
        return result + x


class PreActivated(nn.Module):
    """A ResNet of 9 * `blocks` + 2 layers: `blocks` bottlenecks a stage; the first stage's middle is `width` wide."""

    def __init__(self, classes: int, width: int, blocks: int, norm: Norm) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        widths = [width, *(NARROWER * width * 2**stage for stage in range(STAGES) for _ in range(blocks))]
        first = {blocks * stage for stage in range(1, STAGES)}
        self.blocks = nn.ModuleList(
            Bottleneck(inward, outward, 2 if place in first else 1, norm)
            for place, (inward, outward) in enumerate(pairwise(widths))
        )
        self.norm, self.act = norm(widths[-1]), nn.ReLU()
        self.head = nn.Linear(widths[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.act(self.norm(x)).mean((2, 3)))
        return logits


class ViT(nn.Module):
    """A transformer of `layers` layers over patches of the image, without a causal mask."""

    def __init__(self, classes: int, width: int, layers: int, call: Call = plainly) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, PATCH, stride=PATCH)
        self.places = nn.Parameter(0.5 * torch.randn(PLACES, width))
        self.blocks = nn.ModuleList(Layer(width, nn.GELU, causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        self.call = call

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = self.call(block, x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


def _layer(inward: int, outward: int, size: int, stride: int, norm: Norm) -> nn.Sequential:
    convolution = nn.Conv2d(inward, outward, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(norm(inward), nn.ReLU(), convolution)
