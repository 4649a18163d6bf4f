"""ActLinear with a joint code: forward is stock's, backward uses its levels, and it saves only the codes."""

import copy
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import KernelError
from actfit.coefficients import load
from actfit.coefficients.document import dumps, seal
from actfit.fitting.activations import get
from actfit.fitting.joint.document import to_document
from actfit.fitting.joint.solve import fit_joint
from actfit.fitting.weights import from_samples
from actfit.kernels.engine import launch, reference
from actfit.kernels.memory.step import Living
from actfit.kernels.validate import joint_kernels
from actfit.nn import ActLinear
from tests.kernels.saved import bytes_allocated

STOCK = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def codes_of(name: str, bits: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """The levels of f' and f for x, from the stored file."""
    solution = load(name, f"joint-{bits}bit")["solution"]
    codes = np.searchsorted(solution["borders"], x.detach().double().numpy(), side="left")
    return tuple(torch.tensor(np.array(solution[key])[codes]) for key in ("derivatives", "outputs"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "bits"), [("gelu", 2), ("mish", 5), ("quick_gelu", 7), ("silu", 8)])
def test_backward_is_of_the_files_levels(name: str, bits: int, dtype: torch.dtype) -> None:
    linear = nn.Linear(35, 8).to(dtype)
    x = (2 * torch.randn(3, 7, 35)).to(dtype).requires_grad_()
    grad = torch.randn(3, 7, 8).to(dtype)
    out = ActLinear(name, linear, bits=bits)(x)
    dx, dweight, dbias = torch.autograd.grad(out, [x, linear.weight, linear.bias], grad)
    stock = torch.autograd.grad(linear(STOCK[name](x)), linear.bias, grad)[0]
    derivative, output = codes_of(name, bits, x)
    rows = grad.double().reshape(-1, 8)
    close = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 64 * torch.finfo(dtype).eps}  # sums of at most 35 terms of 1
    assert torch.equal(dbias, stock)
    torch.testing.assert_close(dx.double(), (grad.double() @ linear.weight.double()) * derivative, **close)
    torch.testing.assert_close(dweight.double(), rows.T @ output.reshape(-1, 35), **close)


@pytest.mark.parametrize("bits", [2, 5, 8])
def test_errors_are_those_of_the_file_on_its_own_distribution(bits: int) -> None:
    x = torch.randn(400, 1000, requires_grad=True)
    linear = nn.Linear(1000, 1000, bias=False)
    linear.weight.data = torch.eye(1000)
    layer = ActLinear("gelu", linear, bits=bits)
    dx = torch.autograd.grad(layer(x).sum(), x)[0]  # f'(x) itself, as the weight is 1
    exact = torch.autograd.grad(F.gelu(x).sum(), x)[0]
    stored = load("gelu", f"joint-{bits}bit")["error"]["derivative_share"]
    # 400,000 squares of errors: their mean is within one in a hundred of its expectation by far.
    assert ((dx - exact).norm() / exact.norm()).item() == pytest.approx(stored, rel=1e-2)


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("bits", [2, 5, 8])
def test_triton_gives_what_plain_pytorch_gives(bits: int, dtype: torch.dtype, device: str) -> None:
    x = torch.cat([3 * torch.randn(1003), torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 1e-30])]).to(dtype)
    for spec in joint_kernels("silu", bits, None):
        (y, saved), (by_triton, planes) = reference.forward(spec, x, ()), launch.forward(spec, x.to(device), ())
        assert torch.equal(saved, planes.cpu())
        torch.testing.assert_close(y, by_triton.cpu())
        ones = torch.ones_like(x)
        derivative = reference.backward(spec, ones, None, saved, ())
        device_derivative = launch.backward(spec, ones.to(device), None, planes, ())
        assert torch.equal(derivative, device_derivative.cpu())
        assert torch.equal(derivative, reference.levels(spec, saved, len(x), dtype))
        assert torch.equal(derivative, launch.levels(spec, planes, len(x), dtype).cpu())


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_the_weights_gradient_needs_no_tensor_beside_the_looked_up_output(dtype: torch.dtype) -> None:
    linear, x = nn.Linear(256, 16, bias=False).to(dtype), torch.randn(1024, 256).to(dtype)
    out = ActLinear("gelu", linear, bits=5)(x)
    grad = torch.ones_like(out)
    with Living() as living:
        torch.autograd.grad(out, linear.weight, grad)
    assert living.peak == x.nbytes + linear.weight.nbytes


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_is_as_in_eager(backend: str) -> None:
    torch._dynamo.reset()
    net, x = ActLinear("gelu", nn.Linear(35, 8), bits=5), torch.randn(6, 35, requires_grad=True)
    eager, compiled = (
        torch.autograd.grad(run(x).square().sum(), [x, *net.parameters()])
        for run in (net, torch.compile(net, backend=backend, fullgraph=True))
    )
    # The codes are the same; products of matrices round in their own order.
    for by_eager, by_compiler in zip(eager, compiled, strict=True):
        torch.testing.assert_close(by_eager, by_compiler)


@pytest.mark.slow
def test_a_file_of_ones_own(tmp_path: Path) -> None:
    wide = 3 * torch.randn(20_000)
    path = tmp_path / "mine.json"
    path.write_text(dumps(seal(to_document(fit_joint(get("gelu"), 4, weight=from_samples(wide.numpy()))), 1)))
    x, linear = 3 * torch.randn(300, 64), nn.Linear(64, 8)

    def error(layer: nn.Module) -> float:
        exact = torch.autograd.grad(linear(F.gelu(x)).sum(), linear.weight)[0]
        return float((torch.autograd.grad(layer(x).sum(), layer.linear.weight)[0] - exact).norm() / exact.norm())

    assert error(ActLinear("gelu", linear, coefficients=path)) < 0.25 * error(ActLinear("gelu", linear, bits=4))
    layer = ActLinear("gelu", linear, coefficients=path)
    assert "a joint code of x, 4 bits" in repr(layer)
    shutil.move(path, tmp_path / "moved.json")
    assert error(copy.deepcopy(layer)) == error(layer)  # the file is read only once
    shutil.move(tmp_path / "moved.json", path)
    with pytest.raises(KernelError, match="bits must be those of the file, 4, got 3"):
        ActLinear("gelu", linear, bits=3, coefficients=path)
    with pytest.raises(KernelError, match="coefficients must be a joint file of silu, got joint of gelu"):
        ActLinear("silu", linear, coefficients=path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bits": 1}, "bits must be a whole number from 2 to 8, got 1"),
        ({"bits": True}, "bits must be a whole number from 2 to 8, got True"),
        ({"coefficients": ""}, "coefficients must be the path of a file, got ''"),
        ({"coefficients": "no.json"}, "coefficients must be a file that can be read, got .*no.json': No such file"),
        ({"coefficients": 3}, "coefficients must be the path of a file, got 3"),
        ({"bits": 4, "act": "tanh"}, "bits must go with a function that has joint codes, got tanh; make one: actfit"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(KernelError, match=words):
        ActLinear(**{"act": "gelu", "linear": nn.Linear(2, 2), **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [None, 4])
def test_another_name_and_layers_of_nothing(bits: int | None) -> None:
    layer, x = ActLinear("swish", nn.Linear(8, 2), bits=bits), torch.randn(3, 8)
    with torch.no_grad():
        assert torch.equal(layer(x), layer.linear(F.silu(x)))
    for inward, outward in ((8, 0), (0, 4)):
        x = torch.randn(3, inward, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of weights without elements
            linear = nn.Linear(inward, outward)
        layer = ActLinear("silu", linear, bits=bits)
        got = torch.autograd.grad(layer(x).sum(), [x, *linear.parameters()])
        stock = torch.autograd.grad(linear(F.silu(x)).sum(), [x, *linear.parameters()])
        assert [gradient.shape for gradient in got] == [gradient.shape for gradient in stock]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", STOCK)
def test_forward_is_as_without_a_code(name: str, dtype: torch.dtype) -> None:
    linear, x = nn.Linear(35, 8).to(dtype), (3 * torch.randn(6, 35)).to(dtype).requires_grad_()
    assert torch.equal(ActLinear(name, linear, bits=4)(x), ActLinear(name, linear)(x))


@pytest.mark.parametrize("bits", [2, 5, 8])
def test_bytes(bits: int) -> None:
    layer, x = ActLinear("gelu", nn.Linear(40, 16), bits=bits), torch.randn(33, 40).requires_grad_()
    layer(x).sum().backward()
    y, allocated = bytes_allocated(layer, x)
    assert allocated - y.nbytes == bits * 33 * 40 // 8
