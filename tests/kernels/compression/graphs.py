"""Models through the coded partitioner without Inductor: graphs run operation by operation, and nothing is built."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

import actfit
from actfit.kernels.compression import forms, private
from actfit.kernels.graph.inductor import InductorPartitioner
from actfit.kernels.graph.partition import Partitioner


def partitioner(**settings: Any) -> InductorPartitioner:
    """The partitioner in these options."""
    made = actfit.options(**settings)["custom_partitioner_fn"]
    assert isinstance(made, InductorPartitioner)
    return made


def code_from(elements: int, patch: pytest.MonkeyPatch) -> None:
    """Let tensors of so many elements have codes."""
    patch.setattr(forms, "SMALLEST", elements)
    patch.setattr(Partitioner, "smallest", elements)


def stock(joint: fx.GraphModule, inputs: Any, **arguments: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The same cut without codes."""
    return private.partition(joint, inputs, **arguments)


def compiled(function: Callable[..., Any], cut: Callable[..., Any], **options: Any) -> Any:
    """`function`, whose graphs are cut by a partitioner and then run by PyTorch's own operations."""
    torch._dynamo.reset()
    return _with_config(torch.compile(function, backend=_backend(cut), **options), cut)


def _backend(cut: Callable[..., Any]) -> Any:
    def run(graph: fx.GraphModule, _: Any) -> Any:
        return make_boxed_func(graph)

    return aot_autograd(fw_compiler=run, partition_fn=cut, decompositions=select_decomp_table())


def _with_config(run: Any, cut: Callable[..., Any]) -> Any:
    """`run`, which reports the partitioner as torch.compile reports Inductor's options."""
    run.get_compiler_config = lambda: {"custom_partitioner_fn": cut}
    return run


def gradients(model: nn.Module, run: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """Gradients of the model's parameters, for a loss that weighs all outputs differently."""
    model.zero_grad()
    y = run(*inputs)
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float32).view(y.shape)
    (y.float() * weights).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def error(approximate: list[Tensor], exact: list[Tensor]) -> float:
    """The relative error of the whole gradient."""
    difference = sum(float((a - b).double().square().sum()) for a, b in zip(approximate, exact, strict=True))
    return (difference / sum(float(b.double().square().sum()) for b in exact)) ** 0.5
