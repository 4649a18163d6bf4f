"""torch.compile of a converted model, and of a part within one, in PyTorch's own kernels."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from kernels import convert
from tests.kernels.eager.nets import block, gradients

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("exact_codes"),
    pytest.mark.filterwarnings("ignore:compiled code saves by the options"),
]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 32), block(), block()).eval()


@pytest.fixture(autouse=True)
def _afresh() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize("include", [None, "1"])
def test_a_converted_model_is_compiled_as_stock(include: str | None) -> None:
    model, x = net(), torch.randn(16, 32)
    expected = gradients(torch.compile(copy.deepcopy(model), backend="aot_eager"), x)
    convert(model, "compress", include=include)
    got = gradients(torch.compile(model, backend="aot_eager", fullgraph=True), x)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


# Dynamo looks at `.grad` of the input of a compiled part.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_part(in_place: bool) -> None:
    model, x = net(), torch.randn(16, 32)
    expected = gradients(copy.deepcopy(model), x)
    counter = CompileCounterWithBackend("aot_eager")
    if in_place:
        model[1].compile(backend=counter)
    else:
        model[1] = torch.compile(model[1], backend=counter)
    convert(model, "compress")
    frames = []
    for _ in range(2):
        model.zero_grad()
        torch.testing.assert_close(gradients(model, x), expected)  # compiled code may add up in another order
        frames.append(counter.frame_count)
    assert frames[0] > 0
    assert frames[1] == frames[0]  # nothing is compiled a second time
