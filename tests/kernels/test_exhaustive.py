"""Every bfloat16 and float16 input through the Triton kernels: forward, codes, branch bits and gradients."""

import numpy as np
import pytest
import torch

from actfit.codegen.polynomials import tolerance
from actfit.coefficients import load
from actfit.kernels.engine import launch
from actfit.kernels.engine.elements import torch_elements
from actfit.kernels.engine.planes import unpack
from actfit.kernels.generated.functions import FUNCTIONS
from benchmarks.baselines.oracle import DTYPES, exact, truth, ulps
from tests.kernels.specs import border_of, spec

pytestmark = pytest.mark.slow

BITS = [1, 2, 3, 4]
IN_MEMORY = {"gelu": (5, 8), "silu": (6,)}  # tables of these bits are searched there
TWO_SIDED = [name for name in FUNCTIONS if FUNCTIONS[name].branches == 2]
# Where f' is the difference of two terms below 1, float32's rounding of them remains: 2 units of 2**-24.
CANCELLED = 2.0**-23


@pytest.fixture(params=[(name, dtype) for name in FUNCTIONS for dtype in DTYPES], ids="-".join)
def case(request, device):
    name, dtype = request.param
    return name, dtype, truth(name, DTYPES[dtype]), tuple(FUNCTIONS[name].parameters.values()), device


def run(kernel, x, params, device):
    """y, what is saved, and the gradient of y.sum()."""
    x = x.to(device)
    y, saved = launch.forward(kernel, x, params)
    dx = launch.backward(kernel, torch.ones_like(x), y if kernel.storage.keeps_output else None, saved, params)
    return y.cpu(), saved.cpu(), dx.cpu()


def worst(x, got, expected, distance):
    i = int(distance.argmax())
    return f"{int((distance > 1).sum())} of {len(x)} miss, worst at x = {x[i]}: got {got[i]}, expected {expected[i]}"


def test_forward_is_within_one_unit_and_f_prime_too(case):
    name, dtype, (x, f, df), params, device = case
    y, saved, dx = run(spec(name, "forward-ad"), x, params, device)
    finite = torch.isfinite(x)
    distance = ulps(y, f)
    assert distance[finite].max() <= 1, worst(x[finite], y[finite], f[finite], distance[finite])
    # The share of y that is not the nearest number: the share that an error of the primitives' size would move over a
    # border between numbers, if it were as large everywhere and numbers were as close.
    error = tolerance("mills" if name == "gelu" else "tanh", dtype)
    share = 4 * error / torch.finfo(x.dtype).eps
    assert (distance[finite] == 1).sum() <= 2**16 * share
    # Stock PyTorch, computed in float32: within a unit, or farther from the truth than we are.
    stock = torch_elements(name).forward(x.float(), params).to(x.dtype)
    apart = finite & (ulps(y, stock) > 1)
    assert (ulps(stock, f)[apart] >= distance[apart]).all()
    # At infinity: like stock, with the limit in place of stock's NaN. See test_extremes.
    ends = torch.isinf(x)
    assert torch.equal(y[ends], stock[ends])
    assert torch.equal(y[ends], f[ends])
    assert torch.isnan(y[torch.isnan(x)]).all()
    usual = ~torch.isnan(x)
    exact = df.to(x.dtype)
    near = (ulps(saved, exact) <= 1) | ((saved.double() - df).abs() <= CANCELLED)
    assert near[usual].all(), worst(x[usual], saved[usual], exact[usual], ulps(saved, exact)[usual])
    assert torch.equal(dx[usual], saved[usual])


# For both dtypes codes are compared in float32, only reading x differs: so each table is tested in one of them.
CODED = [
    pytest.param((name, dtype), bits, id=f"{name}-{dtype}-{bits}")
    for name in FUNCTIONS
    for bits in (*BITS, *IN_MEMORY.get(name, ()))
    for dtype in [list(DTYPES)[bits % 2]]
]


@pytest.mark.parametrize(("case", "bits"), CODED, indirect=["case"])
def test_fewbit_gradient_is_the_table(case, bits):
    name, _, (x, f, _), params, device = case
    kernel = spec(name, "fewbit", bits)
    y, saved, dx = run(kernel, x, params, device)
    solution = load(name, f"fewbit-{bits}bit")["solution"]
    number = ~torch.isnan(x)
    interval = np.searchsorted(solution["borders"], x[number].double().numpy(), side="left")
    codes = np.asarray(solution["codes"])[interval]
    assert saved.shape == (kernel.stored_bits, 1 << 13)
    assert saved.dtype == torch.uint8
    np.testing.assert_array_equal(unpack(saved, 1 << 16)[number].numpy(), codes)
    levels = torch.tensor(solution["levels"], dtype=torch.float32)[torch.from_numpy(codes)]
    assert torch.equal(dx[number], levels.to(x.dtype))
    assert ulps(y, f)[torch.isfinite(x)].max() <= 1


def bound(document, dx):
    """The file's largest error over all stored outputs, and what rounding f' to the tensor's dtype adds."""
    half_unit = torch.finfo(dx.dtype).eps / 2 * dx.double().abs()
    # The file's number comes from float64; in float32 a formula of some twenty operations moves by 2**-19 at most.
    return document["error"]["linf"] + 2.0**-19 + half_unit


def test_invact_gradient_is_within_the_stored_error(case):
    name, dtype, (x, f, df), params, device = case
    kernel = spec(name, "invact")
    y, saved, dx = run(kernel, x, params, device)
    document = load(name, f"invact-{dtype}")
    finite = torch.isfinite(x) & torch.isfinite(f)
    nearest = finite & (y == f)  # the file's error holds for the nearest y only
    error = (dx.double() - df).abs()
    limit = bound(document, dx)
    assert (error <= limit)[nearest].all(), worst(x, dx, df, torch.where(nearest, error / limit, 0.0))
    assert nearest.sum() >= finite.sum() / 2  # their exact share is tested above
    if kernel.stored_bits:
        side = unpack(saved, 1 << 16).bool()
        border = document["solution"]["border"]
        right = x.double() >= border if document["solution"]["border_side"] == "right" else x.double() > border
        assert torch.equal(side, right)
    else:
        assert saved.numel() == 0


@pytest.mark.parametrize("name", [name for name in TWO_SIDED if name != "threshold"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_bits_are_within_the_stored_error(name, dtype, device):
    """The branch, and whether y, or the border of one y, is farther from zero than f(x): certain where that distance
    exceeds the kernels' error."""
    x, f, df = truth(name, DTYPES[dtype])
    params = tuple(FUNCTIONS[name].parameters.values())
    y, saved, dx = run(spec(name, "invact", 2), x, params, device)
    plain, branch, coarse = run(spec(name, "invact"), x, params, device)
    is_nan = torch.isnan(y)  # a GPU may change a NaN's bits
    assert torch.equal(is_nan, torch.isnan(plain))
    assert torch.equal(y.view(torch.int16)[~is_nan], plain.view(torch.int16)[~is_nan])
    assert torch.equal(saved[:1], branch)
    size, wide = exact(name, DTYPES[dtype])[0].abs(), y.double().abs()
    nearest = torch.isfinite(x) & torch.isfinite(f) & (y == f)
    document = load(name, f"invact-{dtype}-2bit")
    away, border = unpack(saved[1:], 1 << 16).bool(), border_of(document, y)
    error = tolerance("mills" if name == "gelu" else "tanh", dtype)
    middle = (x.abs() > 2.0**-6) & (x.abs() < 4)  # nearer to 0 f(x) is x/2, farther out x or 0
    sure = nearest & middle & ((size - border).abs() > 2 * error * wide)
    assert sure.sum() > middle.sum() / 2
    assert torch.equal(away[sure], (size < border)[sure])
    error, limit = (dx.double() - df).abs(), bound(document, dx)
    held = nearest & (away == (size < border))
    assert (error <= limit)[held].all(), worst(x, dx, df, torch.where(held, error / limit, 0.0))
    assert held.sum() >= torch.isfinite(x).sum() / 2
    weight = torch.where(
        held, torch.exp(-(x.double() ** 2) / 2) * x.double().abs(), 0.0
    )  # of x from N(0, 1), log-spaced
    squares = [(weight * torch.where(held, derivative.double() - df, 0.0) ** 2).sum() for derivative in (dx, coarse)]
    assert squares[0] < squares[1]


@pytest.mark.parametrize("name", TWO_SIDED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_precision_bit_moves_y_by_one_unit_at_most(name, dtype, device):
    x = truth(name, DTYPES[dtype]).x
    params = tuple(FUNCTIONS[name].parameters.values())
    y, _, dx = run(spec(name, "invact-precision-bit"), x, params, device)
    plain, saved, _ = run(spec(name, "invact"), x, params, device)
    number = ~torch.isnan(x) & ~torch.isnan(plain)
    assert (ulps(y, plain)[number] <= 1).all()
    assert torch.equal((y.view(torch.int16) & 1)[number] == 0, unpack(saved, 1 << 16).bool()[number])
    assert torch.isnan(y[torch.isnan(plain)]).all()
    assert torch.equal(torch.isinf(y), torch.isinf(plain))
    # The gradient is the formula at the moved y: that of invact for a saved tensor with the same bits.
    again = launch.backward(spec(name, "invact"), torch.ones_like(x).to(device), y.to(device), saved.to(device), params)
    assert torch.equal(dx[number], again.cpu()[number])
