"""A small model, and the bytes of its activation."""

import torch
from torch import nn


def mlp(act: nn.Module, *more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(24, 40), act, *more, nn.Linear(40, 16))


X = torch.randn(33, 24)
TENSOR = 33 * 40 * 4  # bytes of the activation
