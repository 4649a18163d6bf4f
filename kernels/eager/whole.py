"""Which tensors are saved whole, and why; reports list them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.eager import calls
from kernels.eager.provenance import ALIVE, Provenance, RunningCall
from kernels.eager.tensors import covers, is_plain, storage_of
from kernels.engine.elements import DTYPES
from kernels.memory.storages import storages

OWN = "a function of this project"


@dataclass(frozen=True)
class WholeTensor:
    """A tensor that is saved whole: the function that saves it, the reason, and its bytes."""

    operation: str
    reason: str
    bytes: int


_watched: list[dict[int, WholeTensor]] = []  # one for each `watching`


@contextmanager
def watching() -> Iterator[dict[int, WholeTensor]]:
    """Collect the tensors that forward passes save whole meanwhile, except parameters and inputs."""
    uncoded: dict[int, WholeTensor] = {}
    _watched.append(uncoded)
    try:
        yield uncoded
    finally:
        _watched.pop()


def watch(x: Tensor, operation: str, reason: str) -> None:
    """Record a tensor that is saved whole, unless it is empty."""
    for uncoded in _watched if x.is_nested or (is_plain(x) and x.numel()) else ():
        for storage in storages(x):
            uncoded.setdefault(storage._cdata, WholeTensor(operation, reason, storage.nbytes()))


def why_whole(x: Tensor, saver: RunningCall, provenance: Provenance) -> str:
    """Why a tensor that a call saves is saved whole, or ""."""
    if x.is_nested:
        return "a nested tensor, which has no codes"
    if not is_plain(x) or saver.name == OWN:
        return "no plain tensor"
    if x.numel() == 0:
        return "no elements"
    if x.is_complex():
        return "complex numbers"
    if not x.is_floating_point() and x.dtype != torch.bool and (saver.coding is None or not covers(x)):
        return "integers"
    if x.is_floating_point() and x.dtype not in DTYPES:
        return "8 bits already"
    if x.untyped_storage().nbytes() // x.element_size() < provenance.smallest:
        return f"fewer than {provenance.smallest} elements"
    exactly = saver.interval is None and calls.needs_exact(saver.name, _places(x, saver))
    if x.is_floating_point() and exactly:
        return "backward needs it exactly"
    why = provenance.exact_of_saved(x, saver)
    return why if x.is_floating_point() or why in ALIVE else ""  # codes of other types are exact


def is_operand(x: Tensor, saver: RunningCall) -> bool:
    """Whether a tensor shares its storage with an argument of the call that saves it."""
    return any(is_plain(argument) and storage_of(argument) == storage_of(x) for argument in saver.operands)


def _places(x: Tensor, saver: RunningCall) -> list[int]:
    """The positions of a tensor among the arguments of the call that saves it."""

    def where(x: Tensor) -> tuple[Any, ...]:
        return storage_of(x), x.storage_offset(), x.shape, x.stride()

    own = where(x)
    return [place for place, argument in enumerate(saver.operands) if is_plain(argument) and where(argument) == own]
