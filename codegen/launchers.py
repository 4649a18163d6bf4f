"""`forward_pass` and `backward_pass` of Triton modules that stand alone: they allocate, and launch the kernels."""

import re
from collections.abc import Sequence

from actfit.kernels.engine.templates import OPTIONS, ROWS
from actfit.kernels.methods.storage import Storage

IMPORTS = "import torch\nimport triton\nimport triton.language as tl"
_ELEMENTS = 8 * ROWS  # a program
_SETTINGS = ", ".join(f"{name}={value!r}" for name, value in OPTIONS.items())

_FORWARD = '''\
def forward_pass(x{params}):
    """y = f(x), and what backward needs besides, of a tensor of {dtype}."""
    if x.dtype != torch.{dtype}:
        raise TypeError(f"x must be a tensor of torch.{dtype}, got {{x.dtype}}")
    x = x.contiguous()
    y = torch.empty_like(x)
    saved = {saved}
    grid = (triton.cdiv(x.numel(), {elements}),)
    if x.numel():
        with torch.cuda.device_of(x):
            {launch}
    return y, saved'''
_BACKWARD = '''\
def backward_pass(grad, {kept}saved{params}):
    """grad * f'(x)."""
    grad = grad.contiguous()
    dx = torch.empty_like(grad)
    grid = (triton.cdiv(grad.numel(), {elements}),)
    if grad.numel():
        with torch.cuda.device_of(grad):
            {launch}
    return dx'''
_FUSED_FORWARD = '''\
def forward_pass(x):
    """The results, and the derivatives that backward needs, of a tensor of {dtype}."""
    if x.dtype != torch.{dtype}:
        raise TypeError(f"x must be a tensor of torch.{dtype}, got {{x.dtype}}")
    x = x.contiguous()
    result = tuple(torch.empty_like(x) for _ in range({results}))
    grid = (triton.cdiv(x.numel(), {elements}),)
    if x.numel():
        with torch.cuda.device_of(x):
            {launch}
    return result[:{count}], result[{count}:]'''
_FUSED_BACKWARD = '''\
def backward_pass(grads, derivatives):
    """The sum of grad * derivative."""
    grad, derivative = (tuple(part.contiguous() for part in parts) for parts in (grads, derivatives))
    dx = torch.empty_like(derivative[0])
    grid = (triton.cdiv(dx.numel(), {elements}),)
    if dx.numel():
        with torch.cuda.device_of(dx):
            {launch}
    return dx'''


def launchers(kernels: Sequence[str], storage: Storage, bits: int, dtype: str, defaults: str) -> list[str]:
    """The two functions for the two kernels of a method.

    Parameters
    ----------
    kernels
        The texts of forward_kernel and backward_kernel.
    storage, bits
        What backward reads, and its packed bits an element.
    dtype
        Of the tensors.
    defaults
        The text of the parameters' defaults; "" without parameters.
    """
    saved = "None"
    if storage.packed:
        saved = f"torch.empty(({bits}, triton.cdiv(x.numel(), 8)), dtype=torch.uint8, device=x.device)"
    elif storage.like_input:
        saved = "torch.empty_like(x)"
    params = f", params={defaults}" if defaults else ""
    forward, backward = (_launch(text, of) for text, of in zip(kernels, ("x", "grad"), strict=True))
    return [
        _FORWARD.format(params=params, dtype=dtype, saved=saved, elements=_ELEMENTS, launch=forward),
        _BACKWARD.format(
            params=params, kept="y, " if storage.keeps_output else "", elements=_ELEMENTS, launch=backward
        ),
    ]


def fused_launchers(kernels: Sequence[str], count: int, dtype: str) -> list[str]:
    """The two functions for the fused kernels of `count` results."""
    forward, backward = (_launch(text, of) for text, of in zip(kernels, ("x", "dx"), strict=True))
    return [
        _FUSED_FORWARD.format(dtype=dtype, results=2 * count, count=count, elements=_ELEMENTS, launch=forward),
        _FUSED_BACKWARD.format(elements=_ELEMENTS, launch=backward),
    ]


def _launch(kernel: str, counted: str) -> str:
    """The call of a kernel; what its pointers point to is named as they are."""
    head = re.search(r"def (\w+)\((.*), ROWS: tl\.constexpr\):", kernel)
    if head is None:
        raise ValueError(f"a kernel must begin with its arguments, ROWS last, got {kernel[:100]!r}")
    names = {"n": f"{counted}.numel()", "parameters": "params", "y_ptr": "y" if counted == "x" else "y.contiguous()"}
    given = [names.get(name, re.sub("_ptrs?$", "", name)) for name in head[2].split(", ")]
    return f"{head[1]}[grid]({', '.join(given)}, ROWS={ROWS}, {_SETTINGS})"
