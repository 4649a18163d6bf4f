"""Which saved tensors are kept as they are, and why."""

from typing import Any

import torch
from torch import Tensor

from kernels.eager import calls
from kernels.eager.provenance import ALIVE, Provenance, Running
from kernels.eager.tensors import covers, is_plain, storage_of

OWN = "a function of this project"
CODED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def why_whole(x: Tensor, saver: Running, provenance: Provenance) -> str:
    """Why a tensor that a call saves is kept as it is, or ""."""
    if not is_plain(x) or saver.name == OWN:
        return "no plain tensor"
    if x.numel() == 0:
        return "no elements"
    if not x.is_floating_point() and x.dtype != torch.bool and (saver.coding is None or not covers(x)):
        return "integers"
    if x.is_floating_point() and x.dtype not in CODED:
        return "8 bits already"
    if x.untyped_storage().nbytes() // x.element_size() < provenance.smallest:
        return f"fewer than {provenance.smallest} elements"
    exactly = saver.interval is None and calls.needs_exact(saver.name, _places(x, saver))
    if x.is_floating_point() and exactly:
        return "backward needs it exactly"
    why = provenance.exact_of_saved(x, saver)
    return why if x.is_floating_point() or why in ALIVE else ""  # codes of others are exact


def is_given(x: Tensor, saver: Running) -> bool:
    """Whether a tensor lies where an argument of the call that saves it does."""
    return any(is_plain(one) and storage_of(one) == storage_of(x) for one in saver.given)


def _places(x: Tensor, saver: Running) -> list[int]:
    """Which of the call's tensors it is."""

    def where(x: Tensor) -> tuple[Any, ...]:
        return storage_of(x), x.storage_offset(), x.shape, x.stride()

    own = where(x)
    return [place for place, one in enumerate(saver.given) if is_plain(one) and where(one) == own]
