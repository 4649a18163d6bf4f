"""Models to plan for, planned models and what they save, and the errors of gradients."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

import actfit
from actfit import Plan, make_plan, saved_bytes
from actfit.kernels.compression import private
from actfit.kernels.compression.partitioner import CodedPartitioner
from tests.kernels.compression.models import Llama


def stack(kind: Callable[[], nn.Module] = Llama, layers: int = 2) -> tuple[nn.Module, Tensor]:
    """Layers, and a batch of tensors that are large enough for codes."""
    torch.manual_seed(0)
    return nn.Sequential(*[kind() for _ in range(layers)]), torch.randn(8, 32, 64)


@cache
def planned() -> Plan:
    """The plan for a layer, made once."""
    return make_plan(*stack(layers=1), 0.12, compiled=True, goal="error")


def gradient(model: nn.Module, output: Tensor) -> list[Tensor]:
    """The gradient of a loss that weighs all outputs differently."""
    weights = torch.linspace(-1, 1, output.numel()).view(output.shape)
    return list(torch.autograd.grad((output * weights).sum(), list(model.parameters())))


def partitioner(plan: Plan | Path) -> CodedPartitioner:
    cut = actfit.options(plan=plan)["custom_partitioner_fn"]
    assert isinstance(cut, CodedPartitioner)
    return cut


def saved(model: nn.Module, plan: Plan, x: Tensor) -> tuple[CodedPartitioner, int]:
    """The partitioner of the compiled model, and the bytes that autograd's graph holds."""
    cut = partitioner(plan)
    torch.compiler.reset()
    return cut, saved_bytes(torch.compile(model, backend=private.interpreted(cut), dynamic=False), x).total
