"""Gated activations and the sign bit, through Triton and through the reference."""

import pytest
import torch
from torch.nn import functional as F

import actfit
from actfit.kernels.engine import launch, reference
from actfit.kernels.generated.functions import FUNCTIONS
from benchmarks.baselines.oracle import DTYPES, truth
from tests.kernels.specs import spec

GATED = {
    "swiglu": (actfit.functional.swiglu, F.silu),
    "geglu": (actfit.functional.geglu, F.gelu),
    "reglu": (actfit.functional.reglu, F.relu),
}
SIGNED = [name for name in FUNCTIONS if FUNCTIONS[name].branches == 2 and not FUNCTIONS[name].parameters]


@pytest.mark.parametrize("method", ["exact", "invact", "fewbit", "forward-ad"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", GATED)
def test_gated_gradients(name, dtype, method, place):
    ours, stock = GATED[name]
    torch.manual_seed(0)
    a, b, grad = (torch.randn(37, 41).to(dtype) for _ in range(3))
    first, second = (t.to(place).requires_grad_() for t in (a, b))
    h = ours(first, second, method=method)
    da, db = torch.autograd.grad(h, (first, second), grad.to(place))
    exact_a, exact_b = (t.double().requires_grad_() for t in (a, b))
    exact = stock(exact_a) * exact_b
    expected = torch.autograd.grad(exact, (exact_a, exact_b), grad.double())
    eps = torch.finfo(dtype).eps
    # f(a) rounded, times b rounded; float32's own roundings inside.
    assert ((h.double().cpu() - exact).abs() <= 2 * eps * exact.abs() + 2.0**-20).all()
    assert ((db.double().cpu() - expected[1]).abs() <= 2 * eps * expected[1].abs() + 2.0**-20).all()
    # f' of the method: files err by 1.2e-2 and 4e-3 with f' through a rounded y; in float32 y next to a minimum is
    # off by more than its rounding, which leaves 4e-4 (docs/explanation/trust.md); 3 bits err by 0.11.
    slope = {"fewbit": 0.11, "invact": {torch.float32: 4e-4}.get(dtype, 1.25e-2)}.get(method, 0)
    limit = 3 * eps * expected[0].abs() + (grad * b).double().abs() * (slope + 2.0**-20)
    limit = limit + eps * torch.finfo(dtype).tiny  # the spacing of subnormal numbers
    assert ((da.double().cpu() - expected[0]).abs() <= limit).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SIGNED)
def test_the_sign_tells_the_side_at_every_input(name, dtype, device):
    x, f, df = truth(name, DTYPES[dtype])
    kernel = spec(name, "invact-sign-bit")
    y, signed = (t.cpu() for t in launch.forward(kernel, x.to(device), ()))
    dx = launch.backward(kernel, torch.ones_like(x).to(device), None, signed.to(device), ()).cpu()
    plain, packed = (t.cpu() for t in launch.forward(spec(name, "invact"), x.to(device), ()))
    finite = torch.isfinite(x) & torch.isfinite(f)
    assert torch.equal(y[finite], plain[finite])
    left = torch.signbit(signed)[finite]
    side = reference.unpack(packed, len(x)).bool()[finite]
    assert torch.equal(~left, side)
    # |signed| is y - min f, rounded; y itself carries the polynomials' error.
    height = f.double() - FUNCTIONS[name].minimum
    eps = torch.finfo(x.dtype).eps
    error = (signed.double().abs() - height).abs()[finite]
    assert (error <= eps * (height.abs() + 2 * f.double().abs())[finite] + 2.0**-24).all()
    # y - min f determines f' better than y: the error of f' is at most twice the formula's for stored y.
    floor = {"bfloat16": 1.25e-2, "float16": 5e-3}[dtype]
    assert ((dx.double() - df).abs()[finite] <= 2 * floor + eps * df.abs()[finite]).all()


@pytest.mark.parametrize("name", ["gelu", "silu", "mish"])
def test_act_linear_is_linear_of_act(name, place):
    torch.manual_seed(1)
    linear = torch.nn.Linear(24, 7).to(place)
    x = torch.randn(5, 3, 24).to(place).requires_grad_()
    layer = actfit.nn.ActLinear(name, linear)
    got = torch.autograd.grad(layer(x).square().sum(), [x, *linear.parameters()])
    stock = {"gelu": F.gelu, "silu": F.silu, "mish": F.mish}[name]
    expected = torch.autograd.grad(linear(stock(x)).square().sum(), [x, *linear.parameters()])
    # f' in float32 to 2**-20, and y - min f to 2**-24; sums of 24 and 15 terms up to some tens.
    for computed, exact in zip(got, expected, strict=True):
        torch.testing.assert_close(computed, exact, rtol=1e-4, atol=1e-4)
