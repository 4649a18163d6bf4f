"""The check before `benchmarks.kernels` times a kernel: it must agree with its reference in plain PyTorch, and stock.

Codes, branch bits and lowest bits must agree bit for bit; values to 4 eps of the dtype and 2**-17, where f' is about 1.
The Triton kernels compute f and f' by polynomials accurate to the dtype, so that the last bit may differ.
"""

import torch
from torch import Tensor

from actfit.kernels.engine import reference
from actfit.kernels.engine.planes import unpack
from actfit.kernels.methods.method import KernelSpec
from actfit.kernels.methods.storage import DERIVATIVE, MARKED_OUTPUT, SIGNED_OUTPUT
from actfit.kernels.stock import STOCK
from benchmarks.kernels.cases import ACT_LINEAR, DTYPES, OURS, kernel, make

COUNT = 65_539  # elements: several programs, and a last byte that is not full
ABSOLUTE = 2.0**-17
UNITS = 4  # eps of the dtype: one rounding each of both values, one for a branch bit in the last bit, one to spare


def wrong(function: str, name: str, dtype: str, device: torch.device) -> str:
    """A line saying what is wrong with a method; empty if nothing is."""
    x = _inputs(dtype, device)
    grad = torch.randn(COUNT, device=device, generator=torch.Generator(device).manual_seed(1)).to(x.dtype)
    try:
        if name in OURS or name == ACT_LINEAR:
            return _kernel(function, kernel(function, name), x, grad)
        return _compiled(function, name, x, grad) if name != "eager" else ""
    except Exception as error:  # an error in one method must not stop the others
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _inputs(dtype: str, device: torch.device) -> Tensor:
    """Numbers from N(0, 9), and some special ones."""
    x = 3 * torch.randn(COUNT, device=device, generator=torch.Generator(device).manual_seed(0))
    special = [0.0, -0.0, 1e-6, -1e-6, -0.7518, -1.2785, 5.0, -5.0, 60.0, -60.0, 1000.0, -1000.0]
    x[: len(special)] = torch.tensor(special, device=device)
    return x.to(DTYPES[dtype])


def _kernel(function: str, code: KernelSpec, x: Tensor, grad: Tensor) -> str:
    y, saved = torch.ops.actfit.forward(x, code.key, [])
    reference_y, reference_saved = reference.forward(code, x, [])
    needed = y if code.storage.keeps_output else None
    dx = torch.ops.actfit.backward(grad, needed, saved, code.key, [])
    exact = STOCK[function](x.double())
    problems = [_apart("y", y, reference_y), _apart("y against stock", y, exact)]
    if code.stored_bits:
        problems.append(_differ("codes", unpack(saved, COUNT), unpack(reference_saved, COUNT)))
    elif code.storage is MARKED_OUTPUT:
        problems.append(_differ("sides", _lowest_bit(y), _lowest_bit(reference_y)))
    elif code.storage is DERIVATIVE:
        problems.append(_apart("f'", saved, reference_saved))
    elif code.storage is SIGNED_OUTPUT:
        problems.append(_differ("sides", saved.signbit(), reference_saved.signbit()))
        size = saved.abs() + y.abs()  # the difference of y and its minimum is off by as much as y
        problems.append(_apart("y as saved", saved.abs(), reference_saved.abs(), size=size))
    problems.append(_apart("dx", dx, reference.backward(code, grad, needed, saved, []), grad))
    if code.storage is DERIVATIVE:
        problems.append(_apart("dx against stock", dx, _gradient(STOCK[function], x.double(), grad.double()), grad))
    return "; ".join(filter(None, problems))


def _compiled(function: str, name: str, x: Tensor, grad: Tensor) -> str:
    run = make(function, name)
    y, dx = run(x.requires_grad_()), _gradient(run, x, grad)
    expected = _gradient(STOCK[function], x.double(), grad.double())
    problems = (_apart("y", y.detach(), STOCK[function](x.detach().double())), _apart("dx", dx, expected, grad))
    return "; ".join(filter(None, problems))


def _gradient(run: object, x: Tensor, grad: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(run(x), x, grad)[0]


def _lowest_bit(y: Tensor) -> Tensor:
    return y.view(torch.int32 if y.dtype == torch.float32 else torch.int16) & 1


def _apart(what: str, got: Tensor, expected: Tensor, scale: Tensor | None = None, size: Tensor | None = None) -> str:
    """A line on the worst point outside the tolerance, else empty.

    scale: the upstream gradient. size: numbers whose rounding is allowed, instead of those that are expected.
    """
    limits = torch.finfo(got.dtype)
    unit = torch.ones_like(got) if scale is None else scale.abs()
    rounded = expected if size is None else size
    allowed = UNITS * limits.eps * rounded.double().abs() + ABSOLUTE * unit.double()
    allowed += limits.smallest_normal * limits.eps  # the smallest subnormal number
    excess = (got.double() - expected.double()).abs() / allowed
    missed = ~(excess <= 1)  # NaN misses
    if not missed.any():
        return ""
    i = int(excess.nan_to_num(torch.inf).argmax())
    return f"{what}: {int(missed.sum())} of {COUNT} miss, worst {got[i].item():.9g}, expected {expected[i].item():.9g}"


def _differ(what: str, got: Tensor, expected: Tensor) -> str:
    missed = got != expected
    return f"{what}: {int(missed.sum())} of {COUNT} differ" if missed.any() else ""
