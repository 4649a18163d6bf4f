"""The cases of `benchmarks.kernels`: an activation by each method, and the bytes that it moves."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from actfit.kernels.activation import activation
from actfit.kernels.stock import STOCK
from actfit.kernels.validate import kernel_for
from benchmarks import parsers

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in parsers.KERNEL_DTYPES}
RIVALS, OURS, METHODS = parsers.KERNEL_RIVALS, parsers.KERNEL_OURS, parsers.KERNEL_METHODS
MODES = ("forward", "backward", "both")

Call = Callable[[], object]
Function = Callable[[Tensor], Tensor]


def options_of(name: str) -> dict[str, str | int]:
    """The keyword arguments of `actfit.functional` for one of OURS."""
    method, _, bits = name.partition("-")
    return {"method": method, "bits": int(bits)} if method == "fewbit" else {"method": name}


def moved(function: str, name: str, dtype: str, mode: str) -> float:
    """Bytes an element that a mode reads and writes, see `KernelSpec.moved_bytes`; stock: x, y; dy, x, dx."""
    if mode == "both":
        return moved(function, name, dtype, "forward") + moved(function, name, dtype, "backward")
    if name in RIVALS:
        return (2 if mode == "forward" else 3) * DTYPES[dtype].itemsize
    return kernel_for(function, {}, **options_of(name))[0].moved_bytes(mode, dtype)


def make(function: str, name: str) -> Function:
    """The activation by one of RIVALS or OURS."""
    if name in OURS:
        return partial(activation, function, **options_of(name))
    stock = STOCK[function]
    return torch.compile(lambda x: stock(x), dynamic=False) if name == "compile" else stock


def call(mode: str, function: Function, x: Tensor, grad: Tensor) -> Call:
    """A call that runs one mode; the graph for backward is made once, here."""
    if mode == "forward":
        return lambda: function(x)
    if mode == "backward":
        y = function(x)
        return lambda: torch.autograd.grad(y, x, grad, retain_graph=True)
    return lambda: torch.autograd.grad(function(x), x, grad)


def copy(size: int, device: torch.device) -> Call:
    """A copy that reads size / 2 bytes and writes as many."""
    source = torch.zeros(size // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)
