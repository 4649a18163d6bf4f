"""torch.compile of a converted model, and of a part within one, in PyTorch's own kernels."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor import config as inductor_config

from kernels import compression, convert
from tests.kernels.eager.nets import block, gradients

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("exact_codes"),
    pytest.mark.filterwarnings("ignore:options of torch.compile must have codes"),
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


def test_a_warning_where_the_options_have_no_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.eager.forward._warned", [])
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
    convert(model, "compress")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "options of torch.compile must have codes")
        torch.compile(model, options=compression.options(bits=8))(torch.randn(16, 32))
        with inductor_config.patch(compression.options(bits=8)):
            torch.compiler.reset()
            torch.compile(model)(torch.randn(16, 32))
    torch.compiler.reset()
    with pytest.warns(UserWarning, match="options of torch.compile must have codes"):
        torch.compile(model, backend="aot_eager")(torch.randn(16, 32))


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
