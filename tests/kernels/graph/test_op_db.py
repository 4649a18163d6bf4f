"""PyTorch's own sample inputs of each of its functions: exact bit for bit, and few errors of codes at 8 bits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from tests.kernels.graph.conformance import MOST, assert_kept, tensors

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")
from torch.testing import make_tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, SampleInput, UnaryUfuncInfo

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # PyTorch's samples call what is deprecated

LEFT_OUT = {
    **dict.fromkeys(("sparse_sampled_addmm", "sparse_mm_reduce", "to_sparse"), "their samples are sparse"),
    **dict.fromkeys(("stft", "prod"), "exact but for roundings, see test_functions"),
    "nn_functional_multilabel_margin_loss": "PyTorch's capture computes it by other operations",
    **dict.fromkeys(("as_strided_partial_views", "linalg_eig"), "PyTorch itself refuses its samples"),
    **dict.fromkeys(
        (f"fft_{name}" for name in ("fft", "rfft", "ifft", "ihfft", "ihfft2", "ihfftn")),
        "products of complex numbers round by how these lie in memory: PyTorch's own aot_eager differs, too",
    ),
    **dict.fromkeys(("linalg_lstsq", "linalg_lstsq_grad_oriented"), "PyTorch's own differ from call to call"),
    "special_erfcx": "it is computed again from x, whose error it magnifies by 2 x",
    "special_ndtri": "it is computed again from x, whose error it magnifies without bound near 0 and 1",
    "chalf": "few operations work on such numbers",
}
INFOS = {
    info.formatted_name: info
    for info in op_db
    if info.supports_autograd and torch.float32 in info.dtypes and info.formatted_name not in LEFT_OUT
}
NAMES = [
    pytest.param(name, marks=() if place % 12 == 0 or name == "frexp" else pytest.mark.repeats)
    for place, name in enumerate(INFOS)
]


def sample_of(info: OpInfo) -> SampleInput | None:
    """A dense sample with a gradient; of functions that work element by element 4096 elements, also from near 0."""
    own = {"device": "cpu", "dtype": torch.float32, "requires_grad": True}
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=True):
        given = tensors((sample.input, sample.args, sample.kwargs))
        if not any(x.requires_grad for x in given) or any(x.layout != torch.strided for x in given):
            continue
        if isinstance(info, UnaryUfuncInfo):
            low, high = info.domain
            low = -2 if low is None else low
            x = make_tensor((64, 64), low=low, high=low + 4 if high is None else high, **own)
            return SampleInput(x, args=sample.args, kwargs=sample.kwargs)
        if isinstance(info, BinaryUfuncInfo):
            ends = {"low": -2, "high": 2}
            x, y = (
                make_tensor((64, 64), **{**ends, **options}, **own)
                for options in (info.lhs_make_tensor_kwargs, info.rhs_make_tensor_kwargs)
            )
            return SampleInput(x, args=(y, *sample.args[1:]), kwargs=sample.kwargs)
        return sample
    return None


class Place:
    """Where a tensor of the module's inputs goes."""

    def __init__(self, number: int) -> None:
        self.number = number


class Calls(nn.Module):
    """Calls a function; what it takes are results of operations, and its result goes into others."""

    def __init__(self, call: Callable[..., Any], given: Any) -> None:
        super().__init__()
        self.call, self.given = call, given

    def forward(self, *inputs: Tensor) -> Any:
        args, kwargs = tree_map(lambda x: inputs[x.number] * 1 if isinstance(x, Place) else x, self.given)
        return tree_map(self._used, self.call(*args, **kwargs))

    @staticmethod
    def _used(y: Any) -> Any:
        if not isinstance(y, Tensor) or not y.requires_grad:
            return y
        return y * (y if y.is_complex() else F.relu(y))


@pytest.mark.parametrize("name", NAMES)
def test_each_function(name: str) -> None:
    torch.manual_seed(0)
    sample = sample_of(INFOS[name])
    if sample is None:
        pytest.skip("no sample has a gradient")
    leaves: list[Tensor] = []

    def placed(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.requires_grad:
            return x
        leaves.append(x.detach().clone().requires_grad_())
        return Place(len(leaves) - 1)

    given = tree_map(placed, ([sample.input, *sample.args], sample.kwargs))
    assert_kept(Calls(INFOS[name].op, given), *leaves, most=2 * MOST, captured=None)
