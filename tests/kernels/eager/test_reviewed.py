"""Bugs found in a review: positions of pooling outside of their windows, and empty tensors."""

import math

import pytest
import torch
from torch import nn

from kernels import convert


@pytest.mark.parametrize("channels", [1, 3, 8, 17])
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("share", [1.0, 0.7])
def test_windows_of_nothing_but_minus_infinity(channels: int, dims: int, share: float) -> None:
    """PyTorch's pooling of channels-last images on a CPU then returns positions outside of all windows."""
    torch.manual_seed(0)
    form = torch.channels_last if dims == 2 else torch.channels_last_3d
    x = torch.randn(4, channels, *[8] * dims)
    x[torch.rand_like(x) <= share] = -math.inf
    x = x.contiguous(memory_format=form).requires_grad_()
    net = nn.Sequential((nn.MaxPool2d, nn.MaxPool3d)[dims - 2](3, 2, 1))
    expected = torch.autograd.grad(net(x), x, grad := torch.randn_like(net(x)))[0]
    convert(net, "compress", bits=4)
    assert torch.equal(torch.autograd.grad(net(x), x, grad)[0], expected)


def test_indices_that_are_none() -> None:
    net = nn.Sequential(nn.Embedding(5, 64))
    convert(net, "compress", bits=4)
    for index in (torch.zeros(1, dtype=torch.long).expand(0), torch.zeros(0, 3, dtype=torch.long)):
        y = net(index)
        y.sum().backward()
        assert y.shape == (*index.shape, 64)
