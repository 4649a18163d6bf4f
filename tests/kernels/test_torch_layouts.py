"""Shapes, strides, memory formats and dtypes of inputs and of gradients."""

import pytest
import torch
from torch import Tensor, nn

import actfit
from actfit import functional
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.stock import STOCK
from tests.kernels.saved import each_method

each_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
stock = nn.functional.gelu


def outcome(x: Tensor, options: dict, cotangent: Tensor | None = None) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = functional.gelu(x, **options)
    (gradient,) = torch.autograd.grad(y.sum() if cotangent is None else y, x, cotangent)
    return y.detach(), gradient


def all_layouts(x: Tensor) -> dict[str, Tensor]:
    """A tensor of four dimensions in different memory layouts: for vector code, scalar code and oneDNN."""
    return {
        "contiguous": x,
        "channels_last": x.to(memory_format=torch.channels_last),
        "transposed": x.transpose(1, 3),
        "every second": x[..., ::2],
        "a half": x.chunk(2, dim=-1)[1],
        "a column": x[:, 1],
        "permuted": x[:, :, 1:, 3:].permute(2, 0, 3, 1),
        "rows": x[:1].expand(6, *x.shape[1:]),
        "inside": x[:, :, :1].expand(x.shape),
        "a number": x[0, 0, 0, 0],
    }


WIDE_IN_16_BITS = ("softsign", "tanhshrink", "quick_gelu")  # torch computes them by several operations


@each_dtype
@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_is_stocks_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    """On a CPU, with any strides; where torch rounds intermediate numbers to 16 bits, ours rounds once."""
    params = FUNCTIONS[name].parameters
    made = torch.Generator().manual_seed(1)
    for layout, x in all_layouts(3 * torch.randn(2, 3, 40, 50, dtype=dtype, generator=made)).items():
        narrow = name in WIDE_IN_16_BITS and dtype in (torch.float16, torch.bfloat16)
        expected = STOCK[name](x.float() if narrow else x, *params.values()).to(dtype)
        for method in ("invact", "fewbit", "forward-ad"):
            if method == "fewbit" and not FUNCTIONS[name].bounded_derivative:
                continue
            y = functional.activation(name, x.detach().requires_grad_(), method=method, **params)
            assert torch.equal(y, expected), layout


# Vector and scalar code of gelu differ by some units in the last place. Next to the minimum that moves invact's f',
# which y determines to within 8e-5 there (see test_torch_autograd), and precision-bit's by twice as much.
OF_Y, OF_SLOPE = 4 * torch.finfo(torch.float32).eps, 2e-4


def close(got: Tensor, expected: Tensor, bound: float) -> bool:
    return bool(((got - expected).abs() <= bound * expected.abs().clamp(min=1)).all())


@each_dtype
@pytest.mark.parametrize("shape", [(), (1,), (7,), (8,), (9,), (3, 5, 7), (2, 0, 3), (0,)], ids=str)
@each_method
def test_shapes_and_dtypes(options: dict, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    y, gradient = outcome(x, options)
    assert (y.shape, y.dtype) == (gradient.shape, gradient.dtype) == (x.shape, x.dtype)
    expected = stock(x)
    if options["method"] == "invact-precision-bit":  # it writes into y's last bit
        whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        assert torch.equal(y.view(whole) | 1, expected.view(whole) | 1)
    else:
        assert torch.equal(y, expected)


@pytest.mark.parametrize("name", ["gelu", "tanh"])
def test_large_tensors(name: str) -> None:
    """Torch cuts them into a piece for each thread and runs scalar code at the ends; we work piece by piece, too."""
    x = torch.randn((1 << 20) + 98317)
    for threads in (1, 2, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            ours = getattr(functional, name)(x.clone().requires_grad_())
            expected = torch.tanh(x) if name == "tanh" else getattr(nn.functional, name)(x)
        finally:
            torch.set_num_threads(before)
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 63, 65, 1 << 15, (1 << 15) + 1, (1 << 16) + 7])
@each_method
def test_each_element_has_its_own_slope(options: dict, count: int) -> None:
    """The derivative of an element is the same alone, wherever pieces and bytes end."""
    x = torch.linspace(-4, 4, count)
    gradient = outcome(x, options)[1]
    some = sorted({0, 1, 7, 8, count // 2, (1 << 15) - 1, 1 << 15, count - 2, count - 1} & set(range(count)))
    alone = torch.stack([outcome(x[[index]], options)[1][0] for index in some])
    assert close(gradient[some], alone, OF_SLOPE)


@pytest.mark.parametrize("run", [actfit.functional.swiglu, actfit.functional.geglu, actfit.functional.reglu])
def test_gated_layouts(run) -> None:
    a, b = (torch.randn(6, 5).t().requires_grad_() for _ in range(2))
    rows = [tensor.detach().contiguous().requires_grad_() for tensor in (a, b)]
    cotangent = torch.ones(()).expand(5, 6)
    got = torch.autograd.grad(run(a, b), (a, b), cotangent)
    expected = torch.autograd.grad(run(*rows), rows, cotangent.contiguous())
    assert all(close(*pair, OF_Y) for pair in zip(got, expected, strict=True))


@pytest.mark.parametrize("shape", [(32,), (0, 32), (2, 3, 32), (7, 32)], ids=str)
def test_act_linear_shapes(shape: tuple[int, ...]) -> None:
    net = actfit.nn.ActLinear("gelu", nn.Linear(32, 16))
    x = torch.randn(shape, requires_grad=True)
    y = net(x)
    assert torch.equal(y, net.linear(stock(x)))
    got, expected = (torch.autograd.grad(result.sum(), [x, *net.parameters()]) for result in (y, net.linear(stock(x))))
    # x: f' from y, see test_torch_autograd, times 32 weights below 0.18. The weights: y is saved to an ulp.
    assert all(gradient.shape == exact.shape for gradient, exact in zip(got, expected, strict=True))
    assert all(((gradient - exact).abs() <= 1e-4).all() for gradient, exact in zip(got, expected, strict=True))
