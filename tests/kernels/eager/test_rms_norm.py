"""RMS norm on a CPU, which PyTorch composes of other operations: one code, of its input."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import convert
from kernels.eager import coder
from kernels.methods.every_tensor import MAX_GROUP
from kernels.methods.expected_error import expected_error
from tests.kernels.eager.nets import Net, assert_same, converted, error, gradients

DTYPES = torch.float32, torch.float64, torch.bfloat16, torch.float16


def normed(shape: tuple[int, ...], eps: float | None, weight: Tensor | None) -> Net:
    net = Net(lambda net, x: F.rms_norm(net[0](x), shape, net.weight, eps), nn.Linear(32, 64))
    net.weight = None if weight is None else nn.Parameter(weight)
    return net


@pytest.mark.usefixtures("exact_codes")
@pytest.mark.parametrize("dtype", DTYPES)
def test_output_and_gradients_are_those_of_pytorch(dtype: torch.dtype) -> None:
    for shape, eps, has_weight in itertools.product([(64,), (8, 64)], [None, 1e-6], [False, True]):
        net = normed(shape, eps, torch.randn(shape) if has_weight else None).to(dtype)
        assert_same(net, torch.randn(4, 8, 32, dtype=dtype, requires_grad=True))


@pytest.mark.usefixtures("exact_codes")
def test_by_its_other_names_and_under_autocast() -> None:
    for function in (torch.rms_norm, lambda x, shape: F.rms_norm(normalized_shape=shape, input=x)):
        assert_same(
            Net(lambda net, x, function=function: function(net[0](x), (64,)), nn.Linear(32, 64)), torch.randn(16, 32)
        )
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(
            nn.Sequential(nn.Linear(32, 64), nn.RMSNorm(64, elementwise_affine=False), nn.Linear(64, 4)),
            torch.randn(16, 32),
        )


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The elements of each tensor that gets codes from now on."""
    counts: list[int] = []

    class Counted(coder.Groups):
        def __init__(self, flat: Tensor, *given: Any) -> None:
            counts.append(flat.numel())
            super().__init__(flat, *given)

    monkeypatch.setattr(coder, "Groups", Counted)
    return counts


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_input_has_a_code(dtype: torch.dtype, encoded: list[int]) -> None:
    layers = nn.Linear(32, 64), nn.RMSNorm(64), nn.Linear(64, 32), nn.RMSNorm(32), nn.Linear(32, 4)
    gradients(converted(nn.Sequential(*layers).to(dtype), bits=8), torch.randn(16, 32, dtype=dtype))
    assert encoded == [16 * 64, 16 * 32]


@pytest.mark.usefixtures("small")
def test_only_the_input_has_a_code_under_autocast(encoded: list[int]) -> None:
    net = nn.Sequential(nn.Linear(32, 64), nn.RMSNorm(64, elementwise_affine=False), nn.Linear(64, 4))
    with torch.autocast("cpu", torch.bfloat16):
        gradients(converted(net, bits=8), torch.randn(16, 32))
    assert encoded == [16 * 64]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("width", [8, 16])
def test_narrow_rows_are_coded_once_normalised(width: int, encoded: list[int]) -> None:
    """They share groups, which the largest row would coarsen for the others."""
    net, x = nn.Sequential(nn.Linear(32, width), nn.RMSNorm(width), nn.Linear(width, 4)), torch.randn(4096, 32)
    x *= torch.randn(4096, 1).exp()
    of_weight = [name for name, _ in net.named_parameters()].index("1.weight")
    got, expected = (gradients(model, x)[1][of_weight] for model in (converted(net, bits=8), net))
    assert error([got], [expected]) < 2 * expected_error(
        8, MAX_GROUP, "nearest"
    )  # the terms of the sum err as codes do
    assert encoded == [4096 * width, 4096 * width]


@pytest.mark.usefixtures("exact_codes")
def test_inputs_with_gaps_are_put_in_order_as_by_pytorch() -> None:
    net = Net(lambda net, x: net[1](net[0](x).transpose(1, 2)).view(2, -1), nn.Linear(32, 64), nn.RMSNorm(64))
    assert_same(net, torch.randn(2, 16, 8, 32))


BAD: list[Any] = [
    ((32,),),
    ((64,), torch.ones(32)),
    ((),),
    (64,),
    (None,),
    ((64.0,),),
    ((True,),),
    (torch.tensor([64]),),
]
BAD += [((64,), 5.0), ((64,), None, "small"), ((64,), None, 1j), ((64,), None, None, 1), ()]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("given", BAD, ids=str)
def test_bad_arguments_are_refused_as_by_pytorch(given: Any) -> None:
    net = Net(lambda net, x: F.rms_norm(net[0](x), *given), nn.Linear(32, 64))
    with pytest.raises((RuntimeError, TypeError)) as stock:
        net(torch.randn(16, 32))
    convert(net, "compress")
    with pytest.raises(type(stock.value)) as ours:
        net(torch.randn(16, 32))
    assert str(ours.value) == str(stock.value)
