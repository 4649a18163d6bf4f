"""Nested forward AD in eager code: the gradients of plain autograd, through everything that torch does with tensors."""

import copy
import io
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import KernelError
from tests.kernels.forward_ad.chains import CASES, WRITTEN, Activation, mish, newgelu
from tests.kernels.forward_ad.eager import assert_same, leaves, mode


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("name", CASES)
def test_the_same_gradients(name: str) -> None:
    assert_same(CASES[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits(dtype: torch.dtype) -> None:
    """The root mean square error against float64 is at most 1.15 times plain autograd's; usually it is smaller."""
    off: dict[bool, list[float]] = {False: [], True: []}
    for name, (function, _, _) in WRITTEN.items():
        if "dropout" in name:
            continue
        x = torch.randn(256, 64, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
        weight = torch.randn(256, 64, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(dtype)
        exact = slope(function, x.double(), weight.double(), nullcontext())
        for nested in off:
            computed = slope(function, x, weight, mode() if nested else nullcontext())
            off[nested].append(float((computed.double() - exact).square().mean().sqrt()))
    for name, plain, nested in zip((n for n in WRITTEN if "dropout" not in n), off[False], off[True], strict=True):
        assert nested <= 1.15 * plain, (name, nested / plain)


def slope(function: Activation, x: Tensor, weight: Tensor, mode: AbstractContextManager[object]) -> Tensor:
    x = x.clone().requires_grad_()
    with mode:
        y = function(x * 1.0).flatten()
    (gradient,) = torch.autograd.grad(y, x, weight.flatten())
    return gradient


@pytest.mark.parametrize("within", [torch.bfloat16, torch.float32])
def test_casts_within_a_chain(within: torch.dtype) -> None:
    """The derivative is rounded to the source's dtype once, and both gradients once more: 2^-8 for each rounding."""
    outer = torch.bfloat16 if within is torch.float32 else torch.float32

    def program(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
        return (a((x @ w).to(outer).to(within)).to(outer) @ v.to(outer)).float().sum()

    assert_same(program, 2.0**-6, torch.float32)


def test_autocast() -> None:
    """Some operations run in float32, some in bfloat16, as they do without the mode."""

    def program(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (newgelu(x @ w) @ v).float().sum() + (a(x @ w) @ v).float().sum()

    assert_same(program, 2.0**-5, torch.float32)


def test_gradients_of_gradients_are_refused() -> None:
    x, w, v = leaves()
    with mode():
        loss = (mish(x @ w) @ v).sum() + mish(x).sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(KernelError, match="must be differentiated once only"):
        (gradient.square().sum() + x.sum()).backward()


def test_overwritten_before_the_chain_ends() -> None:
    """Backward raises plain autograd's error; until then the tensor is usable."""
    for nested in (False, True):
        x, w, v = leaves()
        with mode() if nested else nullcontext():
            y = torch.tanh(x @ w)
            z = torch.sin(y * y) * y
            y.mul_(2)
            loss = (z @ v).sum()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by torch.compile
def test_compiled_code_within() -> None:
    torch._dynamo.reset()

    def program(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
        compiled = torch.compile(lambda z: a(z @ w) @ v, backend="aot_eager", fullgraph=True)
        return compiled(a(x)).sum() + a(compiled(x)).sum()

    assert_same(program)


def test_parameters_stay_clean() -> None:
    """A parameter may be a source; nothing is attached to it that cannot be pickled."""
    weight = nn.Parameter(torch.randn(8, 8))
    with mode():
        loss = (torch.exp(weight * 2) * weight).sum()
    loss.backward()
    assert not vars(weight)
    copy.deepcopy(weight)
    torch.save({"weight": weight}, io.BytesIO())


def test_a_chain_does_not_outlive_the_mode() -> None:
    """Operations outside the mode are not observed, so a chain ends with the mode."""
    for nested in (False, True):
        x, w, v = leaves()
        context = mode() if nested else nullcontext()
        with context:
            h = x @ w
            y = torch.tanh(F.softplus(h))
            z = h * y
        y.register_hook(lambda gradient: gradient * 2)
        more = z.square().sum()
        with context:
            loss = (z @ v).sum() + more
        of_z = torch.autograd.grad(loss, z, retain_graph=True)[0]
        loss.backward()
        if not nested:
            expected = x.grad, of_z
    assert torch.allclose(x.grad, expected[0], rtol=1e-12)
    assert torch.allclose(of_z, expected[1], rtol=1e-12)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, KeyboardInterrupt, ValueError])
def test_an_interrupted_derivative_is_not_lost_in_silence(error: type[BaseException]) -> None:
    """If the program continues nevertheless, backward raises the error."""
    x, w, v = leaves()
    raised: list[int] = []

    def unpack(tensor: Tensor) -> Tensor:
        if not raised:
            raised.append(1)
            raise error("once")
        return tensor

    with mode():
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
            y = mish(x @ w)
        with pytest.raises(error, match="once"):
            y @ v
        loss = (y @ v).sum()
    with pytest.raises(RuntimeError, match="once"):
        loss.backward()


def test_the_range_of_float16() -> None:
    """A derivative beyond float16's range, whose product with the upstream gradient is within it."""
    for nested in (False, True):
        h = torch.linspace(-2, 2, 64).half().requires_grad_()
        with mode() if nested else nullcontext():
            wide = (h * 1.0).float()
            loss = (torch.tanh(wide) * torch.exp(wide) * 1e-9).flatten() @ torch.full((64,), 2.0**20)
        loss.backward()
        if not nested:
            plain = h.grad
    assert h.grad.abs().sum() > 0
    assert torch.equal(h.grad, plain)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_other_kinds_of_tensors() -> None:
    with mode():
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], requires_grad=True)
        (torch.relu(nested * 2.0) * 2.0).to_padded_tensor(0.0).sum().backward()
        rows = torch.randn(3, 4).unbind()
        rows[0].count_nonzero()
    assert nested.grad is not None
