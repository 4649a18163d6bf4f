"""`elementwise`, functions that users write as kernels: values, gradients, what is kept, what is refused, and where."""

import copy
import io
import json
import math
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

import kernels
from codegen import elementwise
from codegen.runtime import Elementwise
from kernels import KernelError
from tests.codegen.test_traced import functions
from tests.kernels.saved import bytes_allocated, bytes_in_graph, in_graph
from tests.kernels.test_properties import gradients, tensors

ROOT = Path(__file__).parents[3]
ops = torch.ops.actfit
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


WRITTEN: dict[str, Callable[[Tensor], Tensor]] = {
    "mish": lambda x: x * torch.tanh(F.softplus(x)),
    "gelu_tanh": _gelu,
    "gelu": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "snake": lambda x: x + torch.sin(2 * x) ** 2 / 2,
    "leaky": lambda x: torch.where(x > 0, x, 0.1 * x),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "softplus": lambda x: torch.log(1 + torch.exp(x)),
    "hardswish": lambda x: x * F.relu6(x + 3) / 6,
    "squared relu": lambda x: F.relu(x).square(),
    "clamped": lambda x: x.clamp(-1, 1).mul(x.sigmoid()),
    "swish": lambda x: x * torch.sigmoid(1.702 * x),
    "powers": lambda x: (1 + x * x) ** 0.3 + x.abs() ** 1.5,
    "rational": lambda x: x * (1 + x.abs()).reciprocal() + torch.rsqrt(1 + x**2),
}
MADE = {name: elementwise(function) for name, function in WRITTEN.items()}


@elementwise
def several(x: Tensor, beta: float = 1.0) -> tuple[Tensor, ...]:
    """Three at once."""
    return x * torch.sigmoid(beta * x), torch.relu(x), 2 - x


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["torch", "triton"])
def backend(request: pytest.FixtureRequest) -> str:
    """The place where tensors go for one of the two backends."""
    return "cpu" if request.param == "torch" else request.getfixturevalue("device")


def exact(function: Callable[..., Tensor], x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """y and dx by torch in float64."""
    wide = x.detach().double().cpu().requires_grad_()
    y = function(wide)
    return y.detach(), torch.autograd.grad(y, wide, grad.double().cpu())[0]


def both(run: Elementwise, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """y and dx by the kernels."""
    x = x.detach().requires_grad_()
    y = run(x)
    return y.detach(), torch.autograd.grad(y, x, grad)[0]


def check(name: str, x: Tensor, grad: Tensor) -> None:
    """Against float64: y is rounded once, dx twice, and what is computed on the way errs by some 16 units of 2**-24 (in
    float64, 2**-53) of numbers up to 2, or up to x where x is large, as in `test_properties`."""
    y, dx = both(MADE[name], x, grad)
    true, slope = exact(WRITTEN[name], x, grad)
    assert (y.dtype, dx.dtype, y.shape, dx.shape) == (x.dtype, x.dtype, x.shape, x.shape)
    eps, least = torch.finfo(x.dtype).eps, torch.finfo(x.dtype).smallest_normal
    inner = 32 * (2.0**-53 if x.dtype == torch.float64 else 2.0**-24)
    large = 1 + x.double().cpu().abs()
    assert ((y.double().cpu() - true).abs() <= eps * true.abs() + inner * large * (1 + true.abs()) + least).all()
    limit = 1.5 * eps * slope.abs() + inner * large * (grad.double().cpu().abs() + slope.abs()) + least
    assert ((dx.double().cpu() - slope).abs() <= limit).all()


@each_dtype
@pytest.mark.parametrize("name", WRITTEN)
def test_values_and_gradients_are_those_of_float64(name: str, dtype: torch.dtype, backend: str) -> None:
    x = (torch.randn(1003, dtype=torch.float64) * 3).to(dtype).to(backend)
    check(name, x, torch.randn(1003).to(dtype).to(backend))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(functions(), st.sampled_from(DTYPES[:3]), st.integers(0, 2**32 - 1))
def test_random_functions(device: str, function: Callable[..., Tensor], dtype: torch.dtype, seed: int) -> None:
    x = (torch.randn(64, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)
    try:
        got = both(elementwise(function), x.to(device), torch.ones_like(x).to(device))
    except KernelError as error:
        if not re.search("a formula must have at most|must depend on x", str(error)):
            raise
        return
    near = [exact(function, x.double() + step, torch.ones_like(x)) for step in (-(2.0**-16), 2.0**-16)]
    for place, true in enumerate(exact(function, x, torch.ones_like(x))):
        # Beside a kink or a jump rounding may choose the other branch: what both have there is right. Elsewhere, some
        # twenty operations in float32, and one rounding.
        jump = (near[1][place] - near[0][place]).abs() + (near[1][place] - true).abs()
        size = 1 + torch.stack([true, near[0][place]]).abs().max()
        limit = torch.finfo(dtype).eps * true.abs() + torch.finfo(dtype).smallest_normal + 2.0**-17 * size + 2 * jump
        assert ((got[place].double().cpu() - true).abs() <= limit).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", WRITTEN)
def test_extremes(name: str, dtype: torch.dtype, backend: str) -> None:
    """Where float64's formula is finite, so is ours; where x is so large that its square is not a float32 number, for
    those without powers."""
    points = [0.0, -0.0, 1e-30, -1e-30, 89.0, -89.0, 1e4, -1e4]
    if name not in ("gelu_tanh", "squared relu", "powers", "rational", "snake"):
        points += [1e30, -1e30, math.inf, -math.inf]
    x = torch.tensor(points, dtype=dtype)
    got = both(MADE[name], x.to(backend), torch.ones_like(x).to(backend))
    for one, true in zip(got, exact(WRITTEN[name], x, torch.ones_like(x)), strict=True):
        finite = true.abs() < 1e35  # the largest numbers that have room for some more
        # Angles of 1e4 are rounded to 2**-10 before their sine is taken.
        units = 2.0**-9 if name == "snake" else 8 * 2.0**-24
        limit = (torch.finfo(dtype).eps + units) * (1 + true.abs())
        assert ((one.double().cpu() - true).abs() <= limit)[finite].all(), (one, true)
        assert finite.sum() >= 6


@each_dtype
def test_nan_gives_nan(dtype: torch.dtype, backend: str) -> None:
    x = torch.full((9,), math.nan, dtype=dtype, device=backend)
    for one in MADE.values():
        assert torch.isnan(one(x)).all()
        assert torch.isnan(one(x.requires_grad_())).all()


KINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "abs": lambda x: x.abs(),
    "relu6": F.relu6,
    "clamp": lambda x: x.clamp(-1, 1),
    "hardtanh": F.hardtanh,
    "leaky": lambda x: F.leaky_relu(x, 0.25),
    "hardshrink": F.hardshrink,
    "ties": lambda x: torch.maximum(x, x * x) + torch.minimum(x, -x),
    "where": lambda x: torch.where(x >= 1, 3 * x, torch.where(x < -1, x, -x)),
}


@pytest.mark.parametrize("name", KINKS)
def test_derivatives_at_kinks_are_torchs(name: str, backend: str) -> None:
    x = torch.tensor([-6.0, -1.0, -0.5, 0.0, -0.0, 0.5, 1.0, 6.0])
    got = both(elementwise(KINKS[name]), x.to(backend), torch.ones_like(x).to(backend))
    for one, true in zip(got, exact(KINKS[name], x, torch.ones_like(x)), strict=True):
        assert torch.equal(one.double().cpu(), true)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_shape_strides_and_gradient_change_nothing(backend: str, data: st.DataObject) -> None:
    x = data.draw(tensors())
    grad = data.draw(gradients(x.shape, x.dtype))
    y, dx = both(MADE["mish"], x.to(backend), grad.to(backend))
    assert (y.shape, y.dtype, dx.shape, dx.dtype) == (x.shape, x.dtype, x.shape, x.dtype)
    if x.numel():
        assert [a for a, size in zip(y.stride(), x.shape, strict=True) if size > 1] == [
            a for a, size in zip(torch.relu(x).stride(), x.shape, strict=True) if size > 1
        ]
    flat_y, flat_dx = both(MADE["mish"], x.flatten().to(backend), grad.flatten().to(backend))
    # PyTorch's vectorised functions differ by units in the last place from what they give at a tensor's end.
    eps = torch.finfo(x.dtype).eps
    torch.testing.assert_close(y.flatten(), flat_y, rtol=8 * eps, atol=8 * eps)
    moved = 8 * eps * (1 + grad.flatten().to(backend).abs())
    assert ((dx.flatten() - flat_dx).abs() <= moved).all()


def test_several_results(backend: str) -> None:
    x = torch.randn(5, 9, device=backend).t().requires_grad_()
    results = several(x, beta=2.0)
    assert type(results) is tuple
    assert [one.stride() for one in results] == [x.stride()] * 3
    weights = [torch.randn(9, 5, device=backend) for _ in results]
    wide = x.detach().double().requires_grad_()
    expected = several.function(wide, beta=2.0)
    for chosen in ([0, 1, 2], [1], [0, 2]):  # the others get no gradient
        total = sum((results[i] * weights[i]).sum() for i in chosen)
        (dx,) = torch.autograd.grad(total, x, retain_graph=True)
        (true,) = torch.autograd.grad(sum((expected[i] * weights[i]).sum() for i in chosen), wide, retain_graph=True)
        torch.testing.assert_close(dx.double(), true, rtol=2.0**-20, atol=2.0**-20)
    for one, true in zip(results, expected, strict=True):
        torch.testing.assert_close(one.double(), true, rtol=2.0**-22, atol=2.0**-22)


def test_a_tuple_of_one_stays_one() -> None:
    (y,) = elementwise(lambda x: (2 * x,))(torch.ones(3))
    assert torch.equal(y, torch.full((3,), 2.0))


def test_constant_results(backend: str) -> None:
    x = torch.randn(9, dtype=torch.bfloat16, device=backend).requires_grad_()
    ones, same = elementwise(lambda x: (torch.ones_like(x), x))(x)
    assert torch.equal(ones, torch.ones_like(x))
    assert torch.equal(same, x)
    assert same.data_ptr() != x.data_ptr()
    assert torch.equal(torch.autograd.grad((ones + 2 * same).sum(), x)[0], torch.full_like(x, 2))


def test_nan_is_left_where_x_cancels(backend: str) -> None:
    x = torch.tensor([math.nan, 2.0], device=backend).requires_grad_()
    for run, value in ((elementwise(lambda x: x - x), 0.0), (elementwise(lambda x: x / x), 1.0)):
        y = run(x)
        assert (torch.isnan(y).tolist(), y[1].item()) == ([True, False], value)
        assert torch.autograd.grad(y.sum(), x)[0][1] == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_gradcheck(dtype: torch.dtype) -> None:
    x = (torch.randn(12, dtype=torch.float64) * 2).requires_grad_()
    assert torch.autograd.gradcheck(MADE["gelu_tanh"], (x,))
    assert torch.autograd.gradcheck(several, (x + 0.05 * torch.sign(x),))


# What is kept.


@each_dtype
def test_derivatives_are_kept_and_nothing_else(dtype: torch.dtype) -> None:
    x = torch.randn(64, 50, dtype=dtype, requires_grad=True)
    for run, count in ((MADE["gelu_tanh"], 1), (several, 3)):
        assert kernels.saved_bytes(run, x).total == count * x.nbytes
        results, allocated = bytes_allocated(run, x)
        results = results if isinstance(results, tuple) else (results,)
        assert bytes_in_graph(results[0], [x]) == count * x.nbytes
        assert allocated == 2 * count * x.nbytes  # the results and the derivatives


def test_without_a_gradient_nothing_is_kept_or_asked_for() -> None:
    x = torch.randn(64, 50)
    for made in (several(x), torch.no_grad()(several)(x.clone().requires_grad_())):
        assert not any(one.requires_grad for one in made)
    with torch.no_grad():
        assert bytes_allocated(MADE["mish"], x)[1] == x.nbytes
        assert torch.equal(MADE["mish"](x), MADE["mish"](x.clone().requires_grad_()))


def test_results_may_be_changed_in_place() -> None:
    x = torch.randn(9, requires_grad=True)
    y = MADE["mish"](x)
    expected = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    y.mul_(2)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], 2 * expected)


def test_gradients_of_gradients_are_refused() -> None:
    x = torch.randn(9, requires_grad=True)
    (gradient,) = torch.autograd.grad(several(x)[0].sum(), x, create_graph=True)
    with pytest.raises(KernelError, match="must be differentiated once only"):
        gradient.sum().backward()


# The ops, torch.compile, transforms and graphs.


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


def test_a_key_that_nothing_has() -> None:
    with pytest.raises(KernelError, match="key must be of a function that was called in this process, got 'f-0'"):
        ops.fused_forward(torch.ones(3), "f-0", True)


@pytest.fixture
def compiling() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("compiling")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(("how", "dynamic"), [("aot_eager", None), ("aot_eager", True), ("inductor", False)])
def test_compiled_in_one_graph(how: str, dynamic: bool | None) -> None:
    def run(x: Tensor, beta: float) -> Tensor:
        return sum(several(MADE["mish"](x.t()), beta=beta))

    compiled, x = torch.compile(run, backend=how, fullgraph=True, dynamic=dynamic), torch.randn(7, 5).requires_grad_()
    for beta in (2.0, 3.0):
        y, expected = compiled(x, beta), run(x, beta)
        assert torch.equal(y, expected)
        assert y.stride() == expected.stride()
        assert torch.equal(*(torch.autograd.grad(one.sum(), x)[0] for one in (y, expected)))
    kept = in_graph(compiled(x, 2.0), [x])
    assert sum(one.untyped_storage().nbytes() for one in kept) == 4 * x.nbytes  # of mish one, of the others three


@pytest.mark.usefixtures("compiling")
def test_first_called_when_compiled_or_on_tensors_without_contents() -> None:
    """Numbers in tensors are read nevertheless."""
    half, x = torch.tensor(0.5), torch.randn(5)
    run = elementwise(lambda x: half * x.sin() + torch.tensor(2.0))
    torch.testing.assert_close(torch.compile(run, backend="aot_eager", fullgraph=True)(x), 0.5 * x.sin() + 2)
    with FakeTensorMode():
        assert elementwise(lambda x: half * x)(torch.empty(3)).shape == (3,)
    with torch.device("meta"), pytest.raises(KernelError, match="must be a number that can be read here"):
        elementwise(lambda x: torch.tensor(2.0) * x)(x)


@pytest.mark.usefixtures("compiling")
def test_compiled_another_function_is_another() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = MADE["mish"]

        def forward(self, x: Tensor) -> Tensor:
            return self.f(x)

    net, x = Net(), torch.randn(5)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    for net.f in (MADE["mish"], MADE["silu"]):
        assert torch.equal(compiled(x), net.f(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_tensors_without_contents(dtype: torch.dtype) -> None:
    x = torch.empty(3, 50, 7, dtype=dtype, device="meta", requires_grad=True)
    results = several(x)
    dx = torch.autograd.grad(sum(results).sum(), x)[0]
    assert all((one.shape, one.dtype, one.device) == (x.shape, dtype, x.device) for one in (*results, dx))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
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


def test_autocast_changes_nothing() -> None:
    x = torch.randn(9, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(MADE["mish"](x), MADE["mish"](x.detach()))
    assert MADE["mish"](x).dtype == torch.float32


# The decorated object.


def test_it_goes_by_the_functions_name() -> None:
    assert (several.__name__, several.__doc__, repr(several)) == ("several", "Three at once.", "elementwise(several)")
    assert several.__wrapped__ is several.function
    first, *_ = several.expressions(beta=2.0)
    assert first == ("x*sigmoid(2*x)", "2*x*sigmoid(-2*x)*sigmoid(2*x) + sigmoid(2*x)")


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.activation, self.linear = several, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(sum(self.activation(x)))


def plain(x: Tensor) -> Tensor:
    return 2 * x


def test_copies_and_pickles() -> None:
    assert pickle.loads(pickle.dumps(several)) is several
    again = pickle.loads(pickle.dumps(elementwise(plain)))
    assert (again.function, again(torch.ones(1)).item()) == (plain, 2.0)
    with pytest.raises(Exception, match="pickle"):
        pickle.dumps(MADE["mish"])
    net, x = Holder(), torch.randn(4, 3)
    stored = io.BytesIO()
    torch.save(net, stored)
    stored.seek(0)
    for other in (copy.deepcopy(net), torch.load(stored, weights_only=False)):
        assert other.activation is several
        assert torch.equal(other(x), net(x))


def test_a_function_within_another() -> None:
    twice = elementwise(lambda x: MADE["mish"](MADE["mish"](x)) + several(x, beta=2)[1])
    x = torch.randn(9)
    torch.testing.assert_close(twice(x), F.mish(F.mish(x)) + F.relu(x))


def test_a_module_as_a_function() -> None:
    x = torch.randn(9)
    run = elementwise(nn.Sequential(nn.Softplus(), nn.Tanh()))
    torch.testing.assert_close(run(x), torch.tanh(F.softplus(x)))
    assert run.name == "Sequential"


def test_the_first_call_from_several_threads() -> None:
    calls, outcomes = [], []

    @elementwise
    def f(x: Tensor) -> Tensor:
        calls.append(1)
        return x * 3

    threads = [threading.Thread(target=lambda: outcomes.append(f(torch.ones(2)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(calls), len(outcomes)) == (1, 8)
    assert all(torch.equal(one, torch.full((2,), 3.0)) for one in outcomes)


def test_constants_make_functions_of_their_own() -> None:
    @elementwise
    def f(x: Tensor, power: int, scale: float = 1.0, *, negative: bool = False, kind: str = "a") -> Tensor:
        y = scale * x**power
        return -y if negative else y + (1 if kind == "b" else 0)

    x = torch.tensor([3.0])
    outcomes = [f(x, 2), f(x, 2, 2.0), f(x, 3, scale=2), f(x, 2, negative=True), f(x, 2, kind="b"), f(x, True)]
    assert [one.item() for one in outcomes] == [9.0, 18.0, 54.0, -9.0, 10.0, 3.0]
    assert "x ** 2" not in f.source("torch", power=2)
    with pytest.raises(TypeError, match="power"):
        f(x)
    with pytest.raises(
        KernelError, match="scale must be a number, a string or a bool besides the one tensor, got Tensor"
    ):
        f(x, 2, scale=torch.ones(1))


def test_constants_of_numpy_are_numbers() -> None:
    run, x = elementwise(lambda x, by: x * by), torch.tensor([3.0])
    for by in (np.float32(2), np.float64(2), np.int64(2), np.float16(2)):
        assert run(x, by).item() == run(x, by=by).item() == 6.0


class Net(nn.Module):
    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = beta
        self.act = elementwise(self.act)  # type: ignore[method-assign]

    def act(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.beta * x)


class Decorated:
    kept = staticmethod(elementwise(WRITTEN["silu"]))
    shared = elementwise(WRITTEN["silu"])

    @elementwise
    def act(self, x: Tensor) -> Tensor:
        return 2 * x


def test_methods() -> None:
    x = torch.randn(9)
    for beta in (1.0, 2.0):
        torch.testing.assert_close(Net(beta).act(x), x * torch.sigmoid(beta * x))
    assert torch.equal(Decorated().kept(x), MADE["silu"](x))
    assert isinstance(Decorated.shared, Elementwise)
    with pytest.raises(
        KernelError,
        match=r"^act: .* got one in the class Decorated; for a method write self\.act = elementwise\(self\.act\) in",
    ):
        Decorated().act(x)
    with pytest.raises(KernelError, match=r"for a function that takes no self staticmethod\(elementwise\("):
        Decorated().shared(x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return 2 * grad


def test_what_backward_does_not_go_through_is_refused() -> None:
    @elementwise
    def frozen(x: Tensor) -> Tensor:
        with torch.no_grad():
            s = torch.sigmoid(x)
        return x * s

    x = torch.randn(9, requires_grad=True)
    for run in (frozen, elementwise(torch.no_grad()(torch.sigmoid)), elementwise(lambda x: Doubled.apply(x) + x)):
        with pytest.raises(KernelError, match=r"backward goes through, got \w+ within torch\.no_grad\(\) or a"):
            run(x)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():  # around the call it is right
            assert torch.equal(elementwise(WRITTEN["silu"])(x), MADE["silu"](x))
            assert not torch.is_grad_enabled()


# What is refused. All that the function itself may do wrong is in tests/codegen/test_traced.py.


def test_refusals_name_the_function() -> None:
    @elementwise
    def centred(x: Tensor) -> Tensor:
        return x - x.mean()

    with pytest.raises(KernelError, match=r"^centred: an operation must be element-wise, got mean, .*use it outside"):
        centred(torch.ones(3))
    with pytest.raises(KernelError, match="centred: an operation must be element-wise"):
        centred.expressions()
    with pytest.raises(KernelError, match=r"several: target must be one of triton, torch, got 'cuda'"):
        several.source("cuda")
    two = elementwise(lambda x, y: x * y)
    with pytest.raises(
        KernelError, match=r"^<lambda>: an argument must be .* got Tensor; make a function of one tensor of it"
    ):
        two(torch.ones(3), torch.ones(3))
    with pytest.raises(KernelError, match="elementwise must be given a function of a tensor, got int"):
        elementwise(3)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int32, torch.bool, torch.float8_e4m3fn], ids=str)
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(KernelError, match=rf"several: .* of float16, bfloat16, float32 or float64, got {dtype}"):
        several(torch.ones(3).to(dtype))


def test_what_is_no_strided_tensor_is_refused() -> None:
    with pytest.raises(KernelError, match=r"several: its tensor must be strided, got torch\.sparse_coo"):
        several(torch.ones(3, 3).to_sparse())
    with pytest.raises(KernelError, match="several: its first argument must be a tensor, got float"):
        several(3.0)


def test_results_of_another_dtype_are_refused() -> None:
    widening = elementwise(lambda x: x.float().sigmoid())
    assert widening(torch.ones(3)).dtype == torch.float32
    for dtype in (torch.bfloat16, torch.float64):
        with pytest.raises(
            KernelError, match=rf"must have the dtype of its tensor, {dtype}, got torch.float32; end with"
        ):
            widening(torch.ones(3, dtype=dtype))
    assert elementwise(lambda x: x.float().sigmoid().to(x.dtype))(torch.ones(3).half()).dtype == torch.float16
    steps = elementwise(lambda x: x * torch.where(x > 0, 1.0, 0.5))  # where of numbers is float32, as in torch
    assert steps(torch.ones(3, dtype=torch.float64)).dtype == torch.float64
    with pytest.raises(KernelError, match=r"must have the dtype of its tensor, torch\.bfloat16"):
        steps(torch.ones(3).bfloat16())


# The emitted code.


def test_what_is_emitted_stands_alone(device: str, tmp_path: Path) -> None:
    from tests.codegen.run import module

    x = torch.randn(1003, device=device)
    expected = ops.fused_forward(x, several.program((), {}).key, True)
    found = module(several.source("triton", "float32"), tmp_path)
    made, dx = tuple(torch.empty_like(x) for _ in range(6)), torch.empty_like(x)
    found.fused_forward_kernel[(2,)](x, made, 1003, ROWS=64)
    assert all(map(torch.equal, made, expected))
    found.fused_backward_kernel[(2,)](made[:3], made[3:], dx, 1003, ROWS=64)
    twin = module(several.source("torch", "bfloat16"), tmp_path)
    results, slopes = twin.forward_pass(x)
    for one, other in zip((*results, *slopes, twin.backward_pass(made[:3], made[3:])), (*made, dx), strict=True):
        torch.testing.assert_close(one, other, rtol=2.0**-21, atol=2.0**-21)


def script(code: str, **environment: str) -> str:
    known = {key: value for key, value in os.environ.items() if not key.startswith("TRITON_")}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**known, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_what_emits_is_imported_at_the_first_call_and_files_are_gone_at_the_end() -> None:
    out = script(
        "import sys, os, torch\n"
        "from codegen import elementwise\n"
        "from kernels.engine import emitted\n"
        "f = elementwise(lambda x: x * x)\n"
        "print('codegen.fused' in sys.modules)\n"
        "f(torch.ones(3))\n"
        "folder = emitted._folder(os.getpid())\n"
        "print(len(list(folder.glob('*.py'))), folder)\n"
        "if os.fork() == 0:\n"
        "    sys.exit()\n"
        "os.wait()\n"
        "print(folder.exists())\n"
    )
    first, second, third = out.splitlines()
    count, folder = second.split()
    assert (first, count, third) == ("False", "1", "True")
    assert not Path(folder).exists()


COMPILE = """
import importlib.util, json, os, sys, tempfile
from pathlib import Path
os.environ["TRITON_CACHE_DIR"], os.environ["TRITON_DEFAULT_FP_FUSION"] = tempfile.mkdtemp(), "1"
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
specification = importlib.util.spec_from_file_location("emitted", sys.argv[1])
emitted = importlib.util.module_from_spec(specification)
specification.loader.exec_module(emitted)
def texts(kernel, signature, arch):
    aligned = {}
    for place, name in enumerate(kernel.arg_names):
        many = len(signature[name]) if isinstance(signature[name], tuple) else 0
        paths = [(place, i) for i in range(many)] or [(place,)]
        aligned |= {path: [["tt.divisibility", 16]] for path in paths if name != "ROWS"}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index("ROWS"),): 128}, aligned)
    options = {"num_warps": 4, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options).asm["ptx"]
found = []
for arch in (80, 90):
    pointers = lambda count: ("*bf16",) * count
    forward = {"x_ptr": "*bf16", "result_ptrs": pointers(6), "n": "i64", "ROWS": "constexpr"}
    tuples = {"grad_ptrs": pointers(3), "derivative_ptrs": pointers(3)}
    backward = {**tuples, "dx_ptr": "*bf16", "n": "i64", "ROWS": "constexpr"}
    found += [texts(emitted.fused_forward_kernel, forward, arch), texts(emitted.fused_backward_kernel, backward, arch)]
print(json.dumps(found))
"""


def test_what_is_emitted_compiles_for_gpus(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    path = tmp_path / "several.py"
    path.write_text(several.source("triton", "bfloat16"), encoding="utf-8")
    out = script(f"import sys; sys.argv[1:] = [{str(path)!r}]\n" + COMPILE)
    for ptx, loads, stores in zip(json.loads(out), (1, 6, 1, 6), (6, 1, 6, 1), strict=True):
        # Each tensor once, 128 bits a thread and access.
        assert len(re.findall(r"ld\.global\.v4\.b32", ptx)) == loads
        assert len(re.findall(r"st\.global\.v4\.b32", ptx)) == stores
        assert not re.findall(r"(?:ld|st)\.local", ptx)
