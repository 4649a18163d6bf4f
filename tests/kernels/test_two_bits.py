"""invact with two bits beside the output: what is stored, kernels against the reference, layouts, refusals, models."""

import pytest
import torch
from torch import nn

import actfit
import actfit.kernels.functional as F
from actfit import KernelError
from actfit.codegen.options import method
from actfit.codegen.standalone import Request, emit
from actfit.codegen.subject import of_catalogue
from actfit.coefficients import load
from actfit.fitting.activations import get
from actfit.kernels.activation import activation
from actfit.kernels.engine import reference
from actfit.kernels.engine.planes import unpack
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.methods.storage import BRANCH_AND_ROUNDING, BRANCH_BIT, OUTPUT
from benchmarks.baselines.oracle import all_inputs, truth
from tests.codegen.run import module
from tests.kernels.specs import border_of, spec

CURVED = ("hardswish", "gelu", "gelu_tanh", "quick_gelu", "silu", "mish")
NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def gradient(name, x, **options):
    x = x.detach().requires_grad_()
    y = activation(name, x, method="invact", **options)
    return y.detach(), torch.autograd.grad(y, x, torch.ones_like(y))[0]


def test_who_takes_two_bits():
    """Only curved functions that fall and rise store two bits; others store the same as without, in any dtype."""
    stored = {name: spec(name, "invact", 2).storage for name in FUNCTIONS}
    assert {name for name, storage in stored.items() if storage is BRANCH_AND_ROUNDING} == set(CURVED)
    assert stored["threshold"] is BRANCH_BIT
    assert {storage for name, storage in stored.items() if FUNCTIONS[name].branches == 1} == {OUTPUT}
    x = torch.linspace(-3, 3, 1001)
    for name in ("tanh", "threshold"):
        for both in zip(gradient(name, x, bits=2), gradient(name, x), strict=True):
            assert torch.equal(*both)
    assert spec("gelu", "invact", 1).key == spec("gelu", "invact").key


@pytest.mark.parametrize("name", CURVED)
@pytest.mark.parametrize("dtype", NARROW)
def test_the_reference_is_within_the_stored_error(name, dtype):
    """At every input the bits are those of f(x) in float64, unless float32 cannot determine them."""
    x, f, df = truth(name, NARROW[dtype])
    y, dx = gradient(name, x, bits=2)
    kernel, params = spec(name, "invact", 2), tuple(FUNCTIONS[name].parameters.values())
    planes = reference.forward(kernel, x, params)[1]
    right, away = unpack(planes[:1], len(x)).bool(), unpack(planes[1:], len(x)).bool()
    exact, wide = torch.from_numpy(get(name).f(x.double().numpy())).abs(), y.double().abs()
    nearest = torch.isfinite(x) & (y == f)
    document = load(name, f"invact-{dtype}-2bit")
    assert torch.equal(right[nearest], (x.double() >= document["solution"]["border"])[nearest])
    border = border_of(document, y)
    # PyTorch computes GELU's Phi(x) as (1 + erf) / 2 to some units of 2**-24 absolutely, the others in relative terms.
    sure = nearest & ((exact - border).abs() > 2.0**-20 * wide + 2.0**-22 * x.double().abs())
    assert torch.equal(away[sure], (exact < border)[sure])
    held = nearest & (away == (exact < border))
    # As in test_exhaustive: in float32 a formula of some twenty operations moves by 2**-19 at most, and dx is rounded.
    limit = document["error"]["linf"] + 2.0**-19 + torch.finfo(x.dtype).eps / 2 * dx.double().abs()
    assert ((dx.double() - df).abs() <= limit)[held].all()
    assert held.sum() > nearest.sum() / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 3}, "bits must be 1 or 2 for method='invact', got 3: the branch of x, and which way y was rounded"),
        ({"bits": 0}, "bits must be 1 or 2 for method='invact', got 0"),
        ({"bits": 2}, "bits must be 1 for gelu in float32 with method='invact', got 2: the second bit tells which way"),
        ({"method": "invact-precision-bit", "bits": 2}, "bits must go with method='fewbit' or 'invact', got method="),
    ],
)
def test_refusals(options, message):
    x = torch.randn(8, requires_grad=True)
    with pytest.raises(KernelError) as caught:
        F.gelu(x, **options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_float64_is_refused_and_what_needs_no_gradient_is_not():
    with pytest.raises(KernelError, match="bits must be 1 for silu in float64"):
        F.silu(torch.randn(8, dtype=torch.float64, requires_grad=True), bits=2)
    x = torch.randn(8)
    assert torch.equal(actfit.nn.GELU(bits=2)(x), nn.functional.gelu(x))


@pytest.mark.parametrize("name", CURVED)
@pytest.mark.parametrize("dtype", NARROW)
def test_the_torch_module_that_stands_alone(name, dtype, tmp_path):
    text = emit(Request(of_catalogue(name), method("invact", 2), dtype, ("python",)), "torch")
    alone = module(text, tmp_path)
    x = all_inputs(NARROW[dtype])
    params = tuple(FUNCTIONS[name].parameters.values())
    kernel = spec(name, "invact", 2)
    y, saved = alone.forward_pass(x)
    expected, planes = reference.forward(kernel, x, params)
    number = ~torch.isnan(expected)
    assert torch.equal(y[number], expected[number])
    assert torch.equal(saved, planes)
    dx = alone.backward_pass(torch.ones_like(x), y, saved)
    runtime = reference.backward(kernel, torch.ones_like(x), expected, planes, params)
    # The runtime's faster operations round differently in float32. Formulas are fitted to come near the error that
    # rounding y leaves; float32's own error is far below that.
    atol = load(name, f"invact-{dtype}-2bit")["error"]["floor_rms"] / 4
    eps = torch.finfo(NARROW[dtype]).eps
    torch.testing.assert_close(dx[number], runtime[number], rtol=eps, atol=atol)
