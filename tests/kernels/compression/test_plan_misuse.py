"""Plans for compiled models that cannot be made or used."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import actfit
from actfit import KernelError, compress, make_plan
from actfit.kernels.compression import private
from actfit.kernels.compression.planning import run
from tests.kernels.compression.plans import partitioner, planned, stack


def wrong_budget(model: nn.Module, x: Tensor) -> Any:
    return make_plan(model, x, "1GiB", compiled=True, goal="error")


def too_small(model: nn.Module, x: Tensor) -> Any:
    return make_plan(model, x, 0.01, compiled=True, goal="error")


def compiled_already(model: nn.Module, x: Tensor) -> Any:
    return make_plan(torch.compile(model), x, 0.2, compiled=True, goal="error")


def compressed_compiled(model: nn.Module, x: Tensor) -> Any:
    return compress(torch.compile(model), fit=0.2, inputs=x)


def for_compress(model: nn.Module, x: Tensor) -> Any:
    return compress(model, plan=planned())


def of_compress(model: nn.Module, x: Tensor) -> Any:
    return actfit.options(plan=make_plan(model, x, 0.2, goal="error"))


def bits_beside(model: nn.Module, x: Tensor) -> Any:
    return actfit.options(4, plan=planned())


def bound(model: nn.Module, x: Tensor) -> Any:
    return make_plan(model, x, 0.12, max_gradient_error=1e-6, compiled=True, goal="error")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (wrong_budget, r"budget must be a share of what the model keeps for a compiled model, as 0.2, .*, got '1GiB'"),
        (too_small, r"budget must be at least .* kept for backward, got .*: with 2 bits everywhere codes take"),
        (compiled_already, "model must not be compiled yet for a plan, got what torch.compile gave, whose graphs save"),
        (compressed_compiled, "model must not be compiled yet for a plan, got what torch.compile gave, whose graphs"),
        (for_compress, "plan must be for compress, got one of a compiled model, .*; give it to torch.compile"),
        (of_compress, "plan must be of a compiled model, got one for compress, .*; make one by make_plan"),
        (bits_beside, "bits and rounding must not be given beside plan, which says both"),
        (bound, "max_gradient_error must be at least .* for this budget, got 1e-06"),
    ],
)
def test_misuse(misuse: Callable[[nn.Module, Tensor], Any], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        misuse(*stack(layers=1))


def test_the_plan_of_another_model_is_refused() -> None:
    _, x = stack(layers=1)
    cut = partitioner(planned())
    other = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    with pytest.raises(Exception, match=r"plan must be of this model, got one without '.*: aten.addmm'; plan anew"):
        run(other, cut, (x,), {})


@pytest.mark.slow
def test_the_plan_of_fewer_layers_is_refused() -> None:
    plan = make_plan(*stack(layers=2), 0.12, compiled=True, goal="error")
    model, x = stack(layers=3)
    with pytest.raises(Exception, match=r"with 2 modules '\*', where the compiled model has 3: it has nothing for '2'"):
        run(model, partitioner(plan), (x,), {})
    model, x = stack(layers=2)
    run(model, partitioner(plan), (x[:5],), {})  # another batch of the same model
    run(model[1], partitioner(plan), (x,), {})  # a part of it


def test_sizes_for_which_much_less_is_saved_are_told_once() -> None:
    """Here of batches whose tensors are too small for codes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    cut = actfit.options(bits=4)["custom_partitioner_fn"]
    compiled = torch.compile(model, backend=private.interpreted(cut), dynamic=False)
    compiled(torch.randn(128, 64))
    compiled(torch.randn(96, 64))  # as good
    with pytest.warns(UserWarning, match=r"sizes should not change .* keeps 1\.0 times less .* one before 7\.\d times"):
        compiled(torch.randn(32, 64))
    compiled(torch.randn(16, 64))
    assert len(cut.graphs) == 4


def test_nothing_to_compile() -> None:
    model, x = stack(layers=1)
    model.forward = torch._dynamo.disable(model.forward)  # type: ignore[method-assign]
    with pytest.raises(KernelError, match=r"model must be one that torch\.compile makes graphs of for backward"):
        make_plan(model, x, 0.12, compiled=True, goal="error")
