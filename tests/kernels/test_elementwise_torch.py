"""Tensors that `elementwise` saves, and its ops under torch.compile, transforms, autocast and graphs."""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

import actfit
from actfit import KernelError, elementwise
from tests.kernels.saved import bytes_allocated, bytes_in_graph, in_graph
from tests.kernels.written import MADE, each_dtype, several

ops = torch.ops.actfit


@each_dtype
def test_derivatives_are_kept_and_nothing_else(dtype: torch.dtype) -> None:
    x = torch.randn(64, 50, dtype=dtype, requires_grad=True)
    for run, count in ((MADE["gelu_tanh"], 1), (several, 3)):
        assert actfit.saved_bytes(run, x).total == count * x.nbytes
        results, allocated = bytes_allocated(run, x)
        results = results if isinstance(results, tuple) else (results,)
        assert bytes_in_graph(results[0], [x]) == count * x.nbytes
        assert allocated == 2 * count * x.nbytes  # the results and the derivatives


def test_gradients_of_gradients_are_refused() -> None:
    x = torch.randn(9, requires_grad=True)
    (gradient,) = torch.autograd.grad(several(x)[0].sum(), x, create_graph=True)
    with pytest.raises(KernelError, match="must be differentiated once only"):
        gradient.sum().backward()


@pytest.mark.parametrize("slopes", [True, False])
def test_opcheck(slopes: bool) -> None:
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    x = torch.randn(5, 8)
    key = several.program((), {}).key
    done = torch.library.opcheck(ops.fused_forward.default, (x, key, slopes), test_utils=tests)
    assert set(done.values()) == {"SUCCESS"}
    kept = ops.fused_forward(x, key, True)[3:]
    done = torch.library.opcheck(ops.fused_backward.default, ([x, x + 1], kept[:2]), test_utils=tests)
    assert set(done.values()) == {"SUCCESS"}


@pytest.mark.slow
@pytest.mark.usefixtures("afresh")
@pytest.mark.parametrize(("backend", "dynamic"), [("aot_eager", None), ("aot_eager", True), ("inductor", False)])
def test_compiled_in_one_graph(backend: str, dynamic: bool | None) -> None:
    def run(x: Tensor, beta: float) -> Tensor:
        return sum(several(MADE["mish"](x.t()), beta=beta))

    compiled, x = (
        torch.compile(run, backend=backend, fullgraph=True, dynamic=dynamic),
        torch.randn(7, 5).requires_grad_(),
    )
    for beta in (2.0, 3.0):
        y, expected = compiled(x, beta), run(x, beta)
        assert torch.equal(y, expected)
        assert y.stride() == expected.stride()
        assert torch.equal(*(torch.autograd.grad(result.sum(), x)[0] for result in (y, expected)))
    kept = in_graph(compiled(x, 2.0), [x])
    assert sum(tensor.untyped_storage().nbytes() for tensor in kept) == 4 * x.nbytes  # of mish one, of the others three


@pytest.mark.usefixtures("afresh")
def test_first_called_when_compiled_or_on_tensors_without_contents() -> None:
    """The values of tensors are still read."""
    half, x = torch.tensor(0.5), torch.randn(5)
    run = elementwise(lambda x: half * x.sin() + torch.tensor(2.0))
    torch.testing.assert_close(torch.compile(run, backend="aot_eager", fullgraph=True)(x), 0.5 * x.sin() + 2)
    with FakeTensorMode():
        assert elementwise(lambda x: half * x)(torch.empty(3)).shape == (3,)
    with torch.device("meta"), pytest.raises(KernelError, match="must be a number that can be read here"):
        elementwise(lambda x: torch.tensor(2.0) * x)(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_tensors_without_contents(dtype: torch.dtype) -> None:
    x = torch.empty(3, 50, 7, dtype=dtype, device="meta", requires_grad=True)
    results = several(x)
    dx = torch.autograd.grad(sum(results).sum(), x)[0]
    assert all((tensor.shape, tensor.dtype, tensor.device) == (x.shape, dtype, x.device) for tensor in (*results, dx))


def test_transforms_take_the_function_itself() -> None:
    x = torch.randn(4, 3, dtype=torch.float64)
    mish = MADE["mish"]
    torch.testing.assert_close(torch.func.vmap(mish)(x), F.mish(x))
    second = torch.func.vmap(torch.func.grad(torch.func.grad(mish)))(x.flatten())
    torch.testing.assert_close(second, torch.func.vmap(torch.func.grad(torch.func.grad(F.mish)))(x.flatten()))
    _, tangent = torch.func.jvp(mish, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, torch.func.jvp(F.mish, (x,), (torch.ones_like(x),))[1])


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_graphs_hold_torchs_operations() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return MADE["mish"](x) + several(x)[1]

    net, x = Net(), torch.randn(4, 3)
    exported = torch.export.export(net, (x,))
    assert "actfit" not in str(exported.graph)
    graph = torch.fx.symbolic_trace(net)
    assert "softplus" in str(graph.graph)
    for made in (exported.module(), graph, torch.jit.trace(net, (x,))):
        torch.testing.assert_close(made(x), net(x))


def test_a_key_that_nothing_has() -> None:
    with pytest.raises(KernelError, match="key must be of a function that was called in this process, got 'f-0'"):
        ops.fused_forward(torch.ones(3), "f-0", True)
