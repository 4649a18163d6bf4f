"""Extreme inputs: infinities, NaN, zeros of both signs, the largest and subnormal numbers.

For each function, method and dtype, in the reference and in Triton: forward is stock's value, or the limit
where stock gives NaN; so is the gradient, up to the method's error.
"""

import math

import pytest
import torch
from torch import Tensor, nn

from actfit.coefficients import load
from actfit.fitting.activations import get
from actfit.functional import geglu, reglu, swiglu
from actfit.kernels.engine import launch, reference
from actfit.kernels.engine.elements import table_of
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.methods.method import KernelSpec
from actfit.kernels.stock import STOCK
from actfit.nn import ActLinear
from tests.kernels.specs import spec

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
METHODS = ["forward-ad", "fewbit", "invact", "invact-precision-bit"]
CASES = [
    (name, method) for name in FUNCTIONS for method in METHODS
    if method != "invact-precision-bit" or FUNCTIONS[name].branches == 2
]  # fmt: skip


def extremes(dtype: torch.dtype) -> Tensor:
    """Infinities come first; each value comes an even number of times, so vector and scalar code both see it."""
    finite = torch.finfo(dtype)
    numbers = [math.inf, -math.inf, finite.max, finite.min, 0.0, -0.0, finite.smallest_normal / 2]
    return torch.tensor([*numbers, -finite.smallest_normal / 2] * 9 + [math.inf, -math.inf], dtype=dtype)


def at_ends(values: Tensor, x: Tensor, limits: object) -> Tensor:
    """`values`, with the limits in place of NaN where x is far out."""
    limit = torch.where(x < 0, limits.left, limits.right).to(values.dtype)
    return torch.where(torch.isnan(values), limit, values)


def stock(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Stock's y and gradient, limits where those are NaN."""
    x = x.detach().requires_grad_()
    y = STOCK[name](x, *FUNCTIONS[name].parameters.values())
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    activation = get(name)
    return at_ends(y.detach(), x, activation.limits), at_ends(gradient, x, activation.derivative_limits)


def run(engine: object, kernel: KernelSpec, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    params = tuple(kernel.function.parameters.values())
    y, saved = engine.forward(kernel, x, params)
    return (
        y,
        saved,
        engine.backward(kernel, torch.ones_like(x), y if kernel.storage.keeps_output else None, saved, params),
    )


def level(kernel: KernelSpec, interval: int, dtype: torch.dtype) -> Tensor:
    """The gradient of a few-bit table in an interval."""
    steps = table_of(kernel)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.tensor(steps.levels[steps.codes[interval]], dtype=wide).to(dtype)


def check(engine: object, name: str, method: str, dtype: str) -> None:
    x = extremes(DTYPES[dtype])
    kernel = spec(name, method, 3 if method == "fewbit" else 0)
    y, _, dx = run(engine, kernel, x)
    expected, slope = stock(name, x)
    activation, unit = get(name), torch.finfo(x.dtype)
    # Intermediate numbers of stock overflow (hardswish, gelu); our Triton kernels do not, and return f rounded.
    exact = torch.from_numpy(activation.f(x.double().numpy())).to(x.dtype)
    right = (y == expected) | ((y == exact) & (engine is launch))
    if method == "invact-precision-bit":  # moves y by a unit in the last place, and 0 to the smallest number
        right |= (y - exact).abs() <= (exact.abs() * unit.eps).clamp(min=unit.smallest_normal * unit.eps)
    if engine is launch:  # in a primitive a subnormal number may become 0
        right |= (y - expected).abs() <= unit.smallest_normal
    assert right.all(), (x, y, expected)
    if method == "fewbit":
        assert (dx[x < -1] == level(kernel, 0, x.dtype)).all()
        assert (dx[x > 1e4] == level(kernel, -1, x.dtype)).all()
        return
    bound = 2 * unit.eps * slope.double().abs() + 2.0**-23  # rounded, and what float32 leaves where terms cancel
    if method != "forward-ad":
        formula = load(name, f"invact-{'float32' if dtype == 'float64' else dtype}")["error"]["linf"]
        if name == "relu2":  # 2 sqrt(y), where y may be 0 as it is too small
            formula = 2 * math.sqrt(unit.smallest_normal * unit.eps)
        bound = bound + formula + 2.0**-19
    apart = (dx.double() - slope.double()).abs()
    assert ((dx == slope) | (apart <= bound)).all(), (x, dx, slope)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "method"), CASES)
def test_the_reference(name: str, method: str, dtype: str) -> None:
    check(reference, name, method, dtype)
    check_nan(reference, name, method, dtype)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "float64"])
@pytest.mark.parametrize(("name", "method"), CASES)
def test_triton(name: str, method: str, dtype: str, device: str) -> None:
    check(launch, name, method, dtype)
    check_nan(launch, name, method, dtype)


def check_nan(engine: object, name: str, method: str, dtype: str) -> None:
    """NaN gives NaN; by few bits its gradient is a level of the table, which is finite, each time the same."""
    for bits in (3, 5) if method == "fewbit" and name == "gelu" else (3,):  # in the text, and searched in memory
        kernel = spec(name, method, bits if method == "fewbit" else 0)
        y, _, dx = run(engine, kernel, torch.full((11,), math.nan, dtype=DTYPES[dtype]))
        assert torch.isnan(y).all()
        if method == "fewbit":
            assert dx[0] in [level(kernel, interval, dx.dtype) for interval in range(len(table_of(kernel).codes))]
            assert (dx == dx[0]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "mish", "quick_gelu", "hardswish"])
def test_act_linear(name: str, dtype: str) -> None:
    """At -inf f is 0, and so are its gradients; at the largest number and inf f' is 1, and y what it is."""
    linear = nn.Linear(1, 1, bias=False).to(DTYPES[dtype])
    x = torch.tensor([[-math.inf], [math.inf], [torch.finfo(DTYPES[dtype]).max / 16]], dtype=DTYPES[dtype])
    x.requires_grad_()
    y = ActLinear(name, linear)(x)
    with torch.no_grad():
        f = torch.tensor([[0.0], [math.inf], [x[2].item()]], dtype=x.dtype)
        assert torch.equal(y, linear(f))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    # ±(y - min f) in the dtype determines f' at least as well as y: the file's error, and the rounding of f'.
    document = load(name, f"invact-{'float32' if dtype == 'float64' else dtype}")
    bound = (document["error"]["linf"] + 2 * torch.finfo(x.dtype).eps) * linear.weight.abs().item() + 2.0**-19
    assert ((gradient - linear.weight * torch.tensor([[0.0], [1.0], [1.0]])).abs() <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("gate", "name"), [(swiglu, "silu"), (geglu, "gelu"), (reglu, "relu")])
def test_gates(gate, name: str, dtype: str) -> None:
    """f(a) at an infinity is the limit, multiplied by a finite b."""
    a = extremes(DTYPES[dtype]).requires_grad_()
    b = torch.full_like(a, 0.5).requires_grad_()
    for method in ("exact", "invact", "fewbit", "forward-ad"):
        h = gate(a, b, method=method)
        da, db = torch.autograd.grad(h, (a, b), torch.ones_like(h))
        f, slope = stock(name, a)
        # In float32 subnormal numbers are not flushed, unlike in stock's gelu in bfloat16.
        least = torch.finfo(a.dtype).smallest_normal
        assert ((h == f * 0.5) | ((h - f * 0.5).abs() <= least)).all()
        assert ((db == f) | ((db - f).abs() <= least)).all()
        assert not torch.isnan(da).any()
        if method in ("exact", "forward-ad"):
            assert ((da - slope * 0.5).abs() <= torch.finfo(a.dtype).eps).all()


@pytest.mark.parametrize(
    ("name", "x", "left", "stocks"),
    [
        ("relu", 0, 0, 0),
        ("relu6", 6, 1, 0),
        ("hardtanh", 1, 1, 0),
        ("hardshrink", -0.5, 1, 0),
        ("hardshrink", 0.5, 0, 0),
    ],
)
def test_a_table_has_the_left_value_where_a_derivative_jumps(name: str, x: float, left: float, stocks: float) -> None:
    at = torch.full((11,), float(x))
    assert (run(reference, spec(name, "fewbit", 3), at)[2] == left).all()
    assert (run(reference, spec(name, "invact", 0), at)[2] == stocks).all()
    assert (stock(name, at)[1] == stocks).all()
