"""Which code runs the tensors of a device: Triton's compiled kernels, its interpreter, or plain PyTorch."""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from actfit.kernels.errors import KernelError, shown


def backend(device: torch.device | str | None = None) -> str:
    """The code that runs tensors of a device.

    Parameters
    ----------
    device
        A torch.device or its name; by default CUDA if there is one, else the CPU.

    Returns
    -------
    str
        "triton", "triton interpreter" or "torch".

    Raises
    ------
    KernelError
        For an argument that is no device.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not isinstance(device, str | torch.device):
        raise KernelError(f"device must be a torch.device or its name, got {shown(device)}")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise KernelError(
            f"device must be one that torch knows, such as 'cpu' or 'cuda:0', got {shown(device)}"
        ) from None
    if kind not in ("cuda", "cpu") or not _triton_is_installed():
        return "torch"
    if interpreting():
        return "triton interpreter"
    return "triton" if kind == "cuda" else "torch"


def runs_triton(tensor: Tensor) -> bool:
    """Whether Triton kernels take the tensor; they do not compute in float64."""
    if tensor.dtype == torch.float64 or not _triton_is_installed():
        return False
    return tensor.is_cuda or (interpreting() and tensor.is_cpu)


def interpreting() -> bool:
    """Whether Triton runs kernels in its interpreter, which takes CPU tensors (TRITON_INTERPRET=1 at its import)."""
    return bool(_knobs().runtime.interpret)


@cache
def _knobs() -> Any:
    from triton import knobs  # at the first call: Triton need not be installed

    return knobs


@cache
def _triton_is_installed() -> bool:
    return find_spec("triton") is not None
