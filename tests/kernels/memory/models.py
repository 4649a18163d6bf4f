"""A small model, and the bytes of its activation; the tensors of any."""

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


def mlp(act: nn.Module, *more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(24, 40), act, *more, nn.Linear(40, 16))


X = torch.randn(33, 24)
TENSOR = 33 * 40 * 4  # bytes of the activation


def tensors(model: nn.Module, *inputs: object) -> list[Tensor]:
    leaves = [*model.parameters(), *model.buffers(), *tree_leaves(inputs)]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
