"""`forward_pass` and `backward_pass` of Triton modules that stand alone: they allocate, and launch the kernels."""

import re
from collections.abc import Sequence

from actfit.codegen.module import TRITON_IMPORTS
from actfit.kernels.engine.templates import OPTIONS, ROWS
from actfit.kernels.methods.storage import Storage

IMPORTS = f"import torch\n{TRITON_IMPORTS}"
_SETTINGS = ", ".join(f"{name}={value!r}" for name, value in OPTIONS.items())

_FORWARD = '''\
def forward_pass(x{params}):
    """{doc}, of a tensor of {dtype}."""
    if x.dtype != torch.{dtype}:
        raise TypeError(f"x must be a tensor of torch.{dtype}, got {{x.dtype}}")
    x = x.contiguous()
    {allocated}
'''
_BACKWARD = '''\
def backward_pass(grad, {kept}saved{params}):
    """grad * f'(x)."""
    grad = grad.contiguous()
    dx = torch.empty_like(grad)
'''
_FUSED_BACKWARD = '''\
def backward_pass(grads, derivatives):
    """The sum of grad * derivative."""
    grad, derivative = (tuple(part.contiguous() for part in parts) for parts in (grads, derivatives))
    dx = torch.empty_like(derivative[0])
'''
_LAUNCH = """\
    grid = (triton.cdiv({counted}.numel(), {elements}),)
    if {counted}.numel():
        with torch.cuda.device_of({counted}):
            {name}[grid]({given}, ROWS={rows}, {settings})
    return {results}"""


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
    doc, allocated = "y = f(x), and what backward needs besides", f"y = torch.empty_like(x)\n    saved = {saved}"
    forward = _FORWARD.format(params=params, doc=doc, dtype=dtype, allocated=allocated)
    backward = _BACKWARD.format(params=params, kept="y, " if storage.keeps_output else "")
    return [forward + _launch(kernels[0], "x", "y, saved"), backward + _launch(kernels[1], "grad", "dx")]


def fused_launchers(kernels: Sequence[str], count: int, dtype: str) -> list[str]:
    """The two functions for the fused kernels of `count` results."""
    doc = "The results, and the derivatives that backward needs"
    allocated = f"result = tuple(torch.empty_like(x) for _ in range({2 * count}))"
    forward = _FORWARD.format(params="", doc=doc, dtype=dtype, allocated=allocated)
    return [
        forward + _launch(kernels[0], "x", f"result[:{count}], result[{count}:]"),
        _FUSED_BACKWARD + _launch(kernels[1], "dx", "dx"),
    ]


def _launch(kernel: str, counted: str, results: str) -> str:
    """The call of a kernel; what its pointers point to is named as they are."""
    head = re.search(r"def (\w+)\((.*), ROWS: tl\.constexpr\):", kernel)
    if head is None:
        raise ValueError(f"a kernel must begin with its arguments, ROWS last, got {kernel[:100]!r}")
    names = {"n": f"{counted}.numel()", "parameters": "params", "y_ptr": "y" if counted == "x" else "y.contiguous()"}
    given = [names.get(name, re.sub("_ptrs?$", "", name)) for name in head[2].split(", ")]
    return _LAUNCH.format(
        counted=counted,
        elements=8 * ROWS,
        name=head[1],
        given=", ".join(given),
        rows=ROWS,
        settings=_SETTINGS,
        results=results,
    )
