"""The exact bytes saved between forward and backward: eager, compiled, and where no gradient is needed."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import actfit
from actfit import functional
from tests.kernels.saved import METHODS, bytes_allocated, bytes_in_graph, each_method

ROWS, WIDTH = 33, 40
COUNT = ROWS * WIDTH  # 1320 elements of float32, 5280 bytes
PLANE = COUNT // 8  # bytes of one bit of each: 165
# Bytes saved by an MLP with one hidden layer, besides its input and weights. The second Linear always saves y.
EXPECTED = {
    "stock": 8 * COUNT,  # x and y
    "invact": 4 * COUNT + PLANE,  # y, and the branch bit
    "fewbit": 4 * COUNT + 3 * PLANE,  # y, and three bits
    "forward-ad": 8 * COUNT,  # f'(x) and y
    "invact-precision-bit": 4 * COUNT,  # y, with the branch bit as its last bit
    "ActLinear": 4 * COUNT,  # y - min f, with the branch bit as its sign
}


def mlp(method: str) -> nn.Module:
    first, second = nn.Linear(24, WIDTH), nn.Linear(WIDTH, 16)
    if method == "ActLinear":
        return nn.Sequential(first, actfit.nn.ActLinear("gelu", second))
    act = nn.GELU() if method == "stock" else actfit.nn.GELU(**METHODS[method])
    return nn.Sequential(first, act, second)


# By Inductor also "invact-precision-bit" in test_torch_traced, and "forward-ad" is as the stock function there.
@pytest.mark.parametrize(
    ("method", "backend"),
    [
        *((method, backend) for method in EXPECTED for backend in ("eager", "aot_eager")),
        *(pytest.param(name, "inductor", marks=pytest.mark.slow) for name in ("invact", "fewbit", "ActLinear")),
    ],
)
def test_bytes_of_an_mlp(method: str, backend: str) -> None:
    torch._dynamo.reset()
    net, x = mlp(method), torch.randn(ROWS, 24)
    run = net if backend == "eager" else torch.compile(net, backend=backend, fullgraph=True)
    run(x).sum().backward()  # compiled here
    y, allocated = bytes_allocated(run, x)
    assert bytes_in_graph(y, [x, *net.parameters()]) == EXPECTED[method]
    assert allocated - y.nbytes == EXPECTED[method]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 1000])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
def test_fewbit_keeps_its_bits_only(bits: int, count: int, dtype: torch.dtype) -> None:
    x = torch.randn(count, dtype=dtype, requires_grad=True)
    functional.gelu(x, method="fewbit", bits=bits)  # 16-bit functions go by a table, which stays
    y, allocated = bytes_allocated(lambda: functional.gelu(x, method="fewbit", bits=bits))
    expected = bits * -(-count // 8)
    assert bytes_in_graph(y) == expected
    assert allocated - y.nbytes == expected


@each_method
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, None], ids=["no_grad", "inference", "no leaf"])
def test_without_gradient_the_stock_function_runs(options: dict, mode: Callable | None) -> None:
    net = nn.Sequential(actfit.nn.GELU(**options), actfit.nn.SiLU(**options)).eval()
    x = torch.randn(5, 77, requires_grad=mode is not None)
    stock = nn.Sequential(nn.GELU(), nn.SiLU())
    if mode is None:
        y, expected = net(x), stock(x)
    else:
        with mode():
            y, expected = net(x), stock(x)
    assert y.grad_fn is None
    assert torch.equal(y, expected)


@each_method
def test_inference_keeps_nothing(options: dict) -> None:
    net, x = actfit.nn.GELU(**options).eval(), torch.randn(1000)
    with torch.inference_mode():
        y, allocated = bytes_allocated(net, x)
    assert y.is_inference()
    assert allocated == y.nbytes


def gradients(net: nn.Module, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(net(x).square().sum(), [x, *net.parameters()]))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("invact", [PLANE, 4 * COUNT]),
        ("fewbit", [3 * PLANE]),
        ("forward-ad", [4 * COUNT]),
        ("invact-precision-bit", [4 * COUNT]),
    ],
)
def test_hooks_see_what_is_packed(method: str, expected: list[int]) -> None:
    """Offloading moves the saved tensors, and nothing else."""
    x, cotangent = torch.randn(COUNT, requires_grad=True), torch.randn(COUNT)
    moved: list[int] = []

    def pack(tensor: Tensor) -> tuple[bytes, torch.Size, torch.dtype]:
        moved.append(tensor.nbytes)
        return tensor.numpy(force=True).tobytes(), tensor.shape, tensor.dtype

    def unpack(packed: tuple[bytes, torch.Size, torch.dtype]) -> Tensor:
        content, shape, dtype = packed
        return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape) if content else x.new_empty(shape)

    with saved_tensors_hooks(pack, unpack):
        y = functional.gelu(x, **METHODS[method])
    assert sorted(filter(None, moved)) == expected
    plain = functional.gelu(x, **METHODS[method])
    got, plain_gradient = (torch.autograd.grad(result, x, cotangent)[0] for result in (y, plain))
    assert torch.equal(got, plain_gradient)


@each_method
def test_save_on_cpu(options: dict) -> None:
    net = nn.Sequential(nn.Linear(8, 20), actfit.nn.GELU(**options), nn.Linear(20, 3))
    x = torch.randn(5, 8, requires_grad=True)
    plain = gradients(net, x)
    with save_on_cpu():
        offloaded = gradients(net, x)
    assert all(map(torch.equal, plain, offloaded))
