"""The ops by torch.library's own tests, tensors without contents, and refusals."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

import actfit
from actfit import KernelError, functional
from tests.kernels.saved import each_method
from tests.kernels.specs import spec

ops = torch.ops.actfit

# A kernel of each kind of storage, and the tests of torch.library. test_autograd_registration and the last one use
# inputs without a gradient: the ops are not differentiable, the autograd.Function around them is.
KEYS = [
    spec("gelu", "forward-ad").key,
    spec("gelu", "fewbit", 3).key,
    spec("gelu", "fewbit", 6).key,
    spec("gelu", "invact").key,
    spec("relu", "invact").key,
    spec("gelu", "invact-precision-bit").key,
    spec("gelu", "invact-sign-bit").key,
]
ALL = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def checked(op: Callable[..., Any], *args: Any) -> dict[str, str]:
    return torch.library.opcheck(op, args, test_utils=ALL)


@pytest.mark.parametrize("count", [40, 41])
@pytest.mark.parametrize("key", KEYS)
def test_opcheck_of_forward_and_backward(key: str, count: int) -> None:
    x, grad = torch.randn(count), torch.randn(count)
    assert set(checked(ops.forward.default, x, key, []).values()) == {"SUCCESS"}
    y, saved = ops.forward(x, key, [])
    assert set(checked(ops.backward.default, grad, y, saved, key, []).values()) == {"SUCCESS"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [40, 41])
def test_opcheck_of_levels(count: int, dtype: torch.dtype) -> None:
    key = spec("gelu", "fewbit", 6).key
    _, saved = ops.forward(torch.randn(count), key, [])
    assert set(checked(ops.levels.default, saved, key, count, dtype).values()) == {"SUCCESS"}


@pytest.mark.parametrize("count", [0, 40, 4100])
def test_opcheck_of_groups(count: int) -> None:
    x = torch.randn(count)
    planes, *ends = ops.encode_groups(x, None, 64, 4)
    for dtype in (torch.float32, torch.float16):
        done = checked(ops.decode_groups.default, planes, *ends, 64, count, dtype)
        assert set(done.values()) == {"SUCCESS"}


def test_opcheck_of_gated() -> None:
    a, b, grad = (torch.randn(5, 8) for _ in range(3))
    assert set(checked(ops.gated.default, a, b, "silu").values()) == {"SUCCESS"}
    assert set(checked(ops.gated_backward.default, grad, a, b, "silu").values()) == {"SUCCESS"}


def test_an_op_by_itself_is_not_differentiable() -> None:
    x = torch.randn(5, 8, requires_grad=True)
    y, _ = torch.no_grad()(ops.forward)(x, KEYS[3], [])
    assert not y.requires_grad
    with pytest.raises(
        torch.library.OpCheckError if hasattr(torch.library, "OpCheckError") else Exception, match="does"
    ):
        torch.library.opcheck(ops.forward.default, (x, KEYS[3], []), test_utils="test_autograd_registration")


def outcome(x: Tensor, options: dict) -> tuple[Tensor, Tensor]:
    y = functional.gelu(x, **options)
    return y, torch.autograd.grad(y.sum(), x)[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["fake", "meta"])
@each_method
def test_tensors_without_contents(options: dict, kind: str, dtype: torch.dtype) -> None:
    if kind == "fake":
        with FakeTensorMode():
            x = torch.empty(3, 50, 7, dtype=dtype, requires_grad=True)
            made = outcome(x, options)
    else:
        x = torch.empty(3, 50, 7, dtype=dtype, device="meta", requires_grad=True)
        made = outcome(x, options)
    assert all((tensor.shape, tensor.dtype, tensor.device) == (x.shape, x.dtype, x.device) for tensor in made)


def test_a_meta_tensor_too_large_to_compute() -> None:
    x = torch.empty(1 << 40, device="meta", requires_grad=True)
    y, saved = ops.forward(x.detach(), spec("gelu", "fewbit", 3).key, [])
    assert (y.shape, saved.shape) == (x.shape, (3, 1 << 37))


USES = {
    "functional": functional.gelu,
    "module": actfit.nn.GELU(),
    "gated": lambda x: actfit.functional.swiglu(x, x),
    "ActLinear": actfit.nn.ActLinear("gelu", nn.Linear(3, 2)),
}


@pytest.mark.parametrize("grad", [True, False], ids=["with gradient", "without"])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.int32, torch.uint8, torch.bool, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("use", USES)
def test_other_dtypes_are_refused(use: str, dtype: torch.dtype, grad: bool) -> None:
    x = torch.ones(3).to(dtype)
    x = x.requires_grad_() if grad and (dtype.is_floating_point or dtype.is_complex) else x
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(
        KernelError, match=rf"must be a tensor of float16, bfloat16, float32,? (or )?float64, got .*{name}"
    ):
        USES[use](x)


@pytest.mark.parametrize("value", [3.0, None, [1.0, 2.0, 3.0]], ids=str)
@pytest.mark.parametrize("use", USES)
def test_what_is_no_tensor_is_refused(use: str, value: object) -> None:
    with pytest.raises(KernelError, match=f"must be a tensor, got {type(value).__name__}"):
        USES[use](value)


@pytest.mark.parametrize("use", USES)
def test_sparse_tensors_are_refused(use: str) -> None:
    x = torch.ones(3, 3).to_sparse().requires_grad_()
    with pytest.raises(KernelError, match="strided"):
        USES[use](x)


def test_gated_tensors_must_agree() -> None:
    a = torch.ones(3, requires_grad=True)
    for b in (torch.ones(4), torch.ones(3, dtype=torch.float64), torch.ones(3, device="meta")):
        with pytest.raises(KernelError, match="a and b must agree in shape, dtype and device"):
            actfit.functional.swiglu(a, b)
