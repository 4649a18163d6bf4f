"""Any shape, strides, dtype, gradient and parameters, by both backends, against autograd in float64."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from actfit.kernels.activation import activation
from actfit.kernels.engine.planes import pack, plane_bytes, unpack
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.methods.registry import ELEMENTWISE as METHODS
from actfit.kernels.stock import STOCK

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
QUICK = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
PARAMETERS = {
    "leaky_relu": st.tuples(st.floats(0, 2, width=32)),
    "threshold": st.tuples(st.floats(-2, 2, width=32), st.floats(-5, 5, width=32)),
    "hardtanh": st.tuples(st.floats(-3, -0.125, width=32), st.floats(0, 3, width=32)),
    "hardshrink": st.tuples(st.floats(0.0625, 2, width=32)),
    "softshrink": st.tuples(st.floats(0.0625, 2, width=32)),
    "softplus": st.tuples(st.floats(0.25, 4, width=32)),
    "elu": st.tuples(st.floats(0, 2, width=32)),
    "celu": st.tuples(st.floats(0.25, 2, width=32)),
}


@st.composite
def tensors(draw):
    """A tensor of any shape (0-d and empty too), dtype and strides, of numbers of all sizes."""
    shape = draw(st.lists(st.integers(0, 5) | st.sampled_from([1, 8, 17]), max_size=4))
    seed = draw(st.integers(0, 2**32 - 1))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(seed)
    full = [2 * size + 1 for size in shape]
    x = torch.randn(full, generator=generator, dtype=torch.float64) * draw(st.sampled_from([1.0, 1e-3, 5.0]))
    x = x.to(dtype)[tuple(slice(0, 2 * size, 2) if draw(st.booleans()) else slice(0, size) for size in shape)]
    order = draw(st.permutations(range(len(shape))))
    return x.permute(order)


@st.composite
def gradients(draw, shape, dtype):
    """A gradient of a shape: dense, transposed in memory, or of stride 0."""
    seed = draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    kind = draw(st.sampled_from(["dense", "transposed", "expanded"]))
    if kind == "expanded":
        return torch.randn((), generator=generator).to(dtype).expand(shape)
    if kind == "transposed" and shape:
        return torch.randn(shape[::-1], generator=generator).to(dtype).permute(*range(len(shape))[::-1])
    return torch.randn(shape, generator=generator).to(dtype)


def applies(name, method):
    if method == "fewbit" and not FUNCTIONS[name].bounded_derivative:
        return False
    return method != "invact-precision-bit" or FUNCTIONS[name].branches == 2


def both(x, grad, name, method, params):
    """y and dx."""
    x = x.detach().requires_grad_()
    y = activation(name, x, method=method, **dict(zip(FUNCTIONS[name].parameters, params, strict=False)))
    y.backward(grad)
    return y.detach(), x.grad


@pytest.mark.parametrize("method", METHODS)
def test_shape_strides_and_gradient_change_nothing(method, place):
    @QUICK
    @given(st.data())
    def check(data):
        name = data.draw(st.sampled_from([function for function in FUNCTIONS if applies(function, method)]))
        x = data.draw(tensors())
        grad = data.draw(gradients(x.shape, x.dtype))
        y, dx = both(x.to(place), grad.to(place), name, method, ())
        assert (y.shape, y.dtype, dx.shape, dx.dtype) == (x.shape, x.dtype, x.shape, x.dtype)
        if x.numel():
            stock = torch.relu(x).stride()  # the layout of any stock function's result
            assert [a for a, size in zip(y.stride(), x.shape, strict=True) if size > 1] == [
                a for a, size in zip(stock, x.shape, strict=True) if size > 1
            ]
        flat_y, flat_dx = both(x.flatten().to(place), grad.flatten().to(place), name, method, ())
        # PyTorch's vector code, scalar code and oneDNN's differ by units in the last place, and where 1 + erf cancels
        # by units of that, times x. Through y, f' next to the minimum is moved by the root, times sqrt(2 f'') < 1.5.
        eps = torch.finfo(x.dtype).eps
        assert (
            (y.flatten() - flat_y).abs() <= 4 * eps * torch.maximum(flat_y.abs(), x.flatten().to(place).abs())
        ).all()
        moved = 1.5 * (4 * eps) ** 0.5 if method.startswith("invact") else 4 * eps
        assert ((dx.flatten() - flat_dx).abs() <= moved * (1 + grad.flatten().to(place).abs())).all()

    check()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_float64(name, place):
    """forward-ad for any parameters; they are float32 numbers, so that x lies on the same side of them in float64."""

    @QUICK
    @given(st.data())
    def check(data):
        x = data.draw(tensors())
        params = data.draw(PARAMETERS.get(name, st.just(())))
        grad = data.draw(gradients(x.shape, x.dtype))
        y, dx = both(x.to(place), grad.to(place), name, "forward-ad", params)
        exact = x.double().detach().requires_grad_()
        numbers = (
            torch.tensor(params).to(x.dtype).tolist() if name == "hardshrink" else params
        )  # as PyTorch rounds them
        expected = STOCK[name](exact, *numbers)
        expected.backward(grad.double())
        # f' and its product with the gradient are rounded to the dtype, each by half a unit; intermediate numbers up to
        # 2 are off by some 16 units of 2**-24 (in float64, 2**-53): f' may be the difference of two.
        eps = torch.finfo(x.dtype).eps
        inner = 32 * (2.0**-53 if x.dtype == torch.float64 else 2.0**-24)
        if name == "softplus":  # stock rounds it to x from beta*x = 20 on, in float64 too
            inner = max(inner, 2.0**-28)
        # Stock's 1/6 is a float32 number, in float64 too.
        if name == "hardsigmoid" or (name == "hardswish" and y.is_cuda):
            inner = max(inner, 2.0**-25)
        least = torch.finfo(x.dtype).smallest_normal
        size = expected.detach().abs()
        assert ((y.double().cpu() - expected.detach()).abs() <= eps * size + inner * (1 + size) + least).all()
        limit = 1.5 * eps * exact.grad.abs() + inner * (grad.double().abs() + exact.grad.abs()) + least
        # Where |x| is large, relu2' = 2x, and x beside an exponential, multiply rounding errors.
        limit = limit * (1 + exact.detach().abs())
        assert ((dx.double().cpu() - exact.grad).abs() <= limit).all()

    check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_parameter_that_is_subnormal(dtype, device):
    x = torch.tensor([1.5, -1.5], dtype=dtype)
    y, _ = both(x.to(device), torch.ones_like(x).to(device), "threshold", "forward-ad", (0.0, 1e-40))
    assert y.tolist() == STOCK["threshold"](x, 0.0, 1e-40).tolist()


# Each but the last is rounded up: the number that it is rounded to is above it, and must count as at it.
@pytest.mark.parametrize(
    ("dtype", "lambd"),
    [
        (torch.bfloat16, 1.302734375),
        (torch.bfloat16, 0.1),
        (torch.float16, 0.7),
        (torch.float32, 0.1),
        (torch.float16, 1.3),
    ],
)
@pytest.mark.parametrize("method", ["forward-ad", "invact"])
def test_hardshrink_rounds_lambd_as_pytorch_does(dtype, lambd, method, place):
    near = torch.tensor(lambd, dtype=torch.float64).to(dtype)
    x = torch.stack([torch.nextafter(near, near.new_tensor(end)) for end in (0, torch.inf)] + [near])
    x = torch.cat([x, -x])
    y, dx = both(x.to(place), torch.ones_like(x).to(place), "hardshrink", method, (lambd,))
    stock = x.clone().requires_grad_()
    expected = STOCK["hardshrink"](stock, lambd)
    expected.sum().backward()
    assert torch.equal(y.cpu(), expected.detach())
    assert torch.equal(dx.cpu(), stock.grad)
    assert stock.grad.tolist() == [0, 1, 0] * 2


@pytest.mark.parametrize("name", PARAMETERS)
def test_invact_takes_any_parameters(name, place):
    @QUICK
    @given(st.data())
    def check(data):
        x = data.draw(tensors()).float()
        params = data.draw(PARAMETERS[name])
        grad = data.draw(gradients(x.shape, x.dtype))
        _, dx = both(x.to(place), grad.to(place), name, "invact", params)
        exact = x.double().detach().requires_grad_()
        STOCK[name](exact, *params).backward(grad.double())
        # f' from a y of float32: y is off by half a unit, which the formulas (slope at most beta in y) pass on.
        limit = grad.double().abs() * (1 + max([1.0, *map(abs, params)])) * 2.0**-22 + 1e-37
        # shrinks: y = x - lambd of x next to lambd is exact, and 0 just where f' is 0; so are the other pieces' ends.
        assert ((dx.double().cpu() - exact.grad).abs() <= limit).all()

    check()


@settings(max_examples=200)
@given(st.integers(0, 300), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_packing_goes_there_and_back(count, bits, seed):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << bits, (count,), generator=generator, dtype=torch.uint8)
    planes = pack(codes, bits)
    assert planes.shape == (bits, plane_bytes(count))
    assert torch.equal(unpack(planes, count), codes)
    # Bit p of element 8*j + k is bit k of byte j of plane p; unused bits of the last byte are 0.
    for plane in range(bits):
        for at in range(plane_bytes(count) * 8):
            bit = int(planes[plane, at // 8]) >> (at % 8) & 1
            assert bit == (int(codes[at]) >> plane & 1 if at < count else 0)
