"""The cases of `benchmarks.kernels`: all methods as functions and layers, and the bytes they move and save."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import actfit
from actfit.kernels.activation import activation
from actfit.kernels.engine.planes import plane_bytes
from actfit.kernels.methods.method import KernelSpec
from actfit.kernels.stock import STOCK
from actfit.kernels.validate import kernel_for, sign_bit_kernel
from benchmarks import parsers

MODULES = {"gelu": (nn.GELU, actfit.nn.GELU), "silu": (nn.SiLU, actfit.nn.SiLU)}
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in parsers.KERNEL_DTYPES}
RIVALS, OURS, METHODS = parsers.KERNEL_RIVALS, parsers.KERNEL_OURS, parsers.KERNEL_METHODS
ACT_LINEAR = parsers.ACT_LINEAR
MODES = ("forward", "backward", "both")
WIDER = 4  # times: the hidden layer over the input

Call = Callable[[], object]
Function = Callable[[Tensor], Tensor]


def options_of(name: str) -> dict[str, str | int]:
    """The keyword arguments of `actfit.functional` for one of OURS."""
    method, _, bits = name.partition("-")
    return {"method": method, "bits": int(bits)} if method == "fewbit" else {"method": name}


def kernel(function: str, name: str) -> KernelSpec:
    """The kernel of one of OURS, or of ActLinear."""
    return sign_bit_kernel(function) if name == ACT_LINEAR else kernel_for(function, {}, **options_of(name))[0]


def moved(function: str, name: str, itemsize: int, n: int) -> dict[str, int]:
    """Bytes that forward, backward and both read and write, of n elements of `itemsize` bytes.

    Stock: x, y; dy, x, dx. Ours: x, y and the saved code; dy, the code, y if needed, dx.
    """
    if name in RIVALS:
        forward, backward = 2 * itemsize * n, 3 * itemsize * n
    else:
        code = kernel(function, name)
        saved = _saved(code, itemsize, n)
        forward = 2 * itemsize * n + saved
        backward = (3 if code.storage.keeps_output else 2) * itemsize * n + saved
    return {"forward": forward, "backward": backward, "both": forward + backward}


def kept(function: str, name: str, itemsize: int, n: int) -> int:
    """Bytes that the forward pass adds, including y.

    The operation before does not save its output, so the input counts if the activation saves it.
    """
    if name in RIVALS:
        return 2 * itemsize * n
    saved = _saved(kernel(function, name), itemsize, n)
    return saved if name == ACT_LINEAR else itemsize * n + saved


def _saved(code: KernelSpec, itemsize: int, n: int) -> int:
    """Bytes that forward stores besides y."""
    return itemsize * n if code.storage.like_input else code.stored_bits * plane_bytes(n)


def make(function: str, name: str) -> Function:
    """The activation by one of RIVALS or OURS."""
    if name in OURS:
        return partial(activation, function, **options_of(name))
    stock = STOCK[function]
    return compiled(lambda x: stock(x)) if name == "compile" else stock


def make_layer(what: str, function: str, name: str, first: nn.Linear, last: nn.Linear) -> Function:
    """`linear`: first and the activation; `mlp`: last too. All methods share first and last."""
    stock, ours = MODULES[function]
    if name == ACT_LINEAR:
        return nn.Sequential(first, actfit.nn.ActLinear(function, last))
    act = ours(**options_of(name)) if name in OURS else stock()
    layer = nn.Sequential(first, act, *([last] if what == "mlp" else []))
    return compiled(layer) if name == "compile" else layer


def compiled(function: Function) -> Function:
    """Compile for static shapes."""
    return torch.compile(function, dynamic=False)


def call(mode: str, function: Function, x: Tensor, grad: Tensor, *weights: Tensor) -> Call:
    """A call that runs one mode; the graph for backward is made once, here."""
    if mode == "forward":
        return lambda: function(x)
    if mode == "backward":
        y = function(x)
        return lambda: torch.autograd.grad(y, (x, *weights), grad, retain_graph=True)
    return lambda: torch.autograd.grad(function(x), (x, *weights), grad)


def copy(size: int, device: torch.device) -> Call:
    """A copy that reads size / 2 bytes and writes as many."""
    source = torch.zeros(size // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def tensors(shape: tuple[int, ...], dtype: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """x, which requires a gradient, and dy, both normally distributed."""
    x, grad = (torch.randn(shape, device=device, dtype=DTYPES[dtype]) for _ in range(2))
    return x.requires_grad_(), grad
