"""RMS norm on a CPU, which PyTorch composes of other operations: one code, of its input."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels import convert
from kernels.eager import coder
from tests.kernels.eager.nets import Net, assert_same, gradients

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


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_input_has_a_code(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []

    class Counted(coder.Groups):
        def __init__(self, flat: Tensor, *given: Any) -> None:
            encoded.append(flat)
            super().__init__(flat, *given)

    monkeypatch.setattr(coder, "Groups", Counted)
    net = nn.Sequential(nn.Linear(32, 64), nn.RMSNorm(64), nn.Linear(64, 32), nn.RMSNorm(32), nn.Linear(32, 4)).to(
        dtype
    )
    convert(net, "compress", bits=8)
    gradients(net, torch.randn(16, 32, dtype=dtype))
    assert [flat.numel() for flat in encoded] == [16 * 64, 16 * 32]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("given", [((32,),), ((64,), torch.ones(32)), ((),)])
def test_bad_arguments_are_refused_as_by_pytorch(given: Any) -> None:
    net = Net(lambda net, x: F.rms_norm(net[0](x), *given), nn.Linear(32, 64))
    with pytest.raises(RuntimeError) as stock:
        net(torch.randn(16, 32))
    convert(net, "compress")
    with pytest.raises(RuntimeError) as ours:
        net(torch.randn(16, 32))
    assert str(ours.value) == str(stock.value)
