"""Tensors that are saved whole, and why, for reports."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from kernels.eager.tensors import is_plain, storage_of


@dataclass(frozen=True)
class Whole:
    """A tensor that is saved whole: the function that saves it, the reason, and its bytes."""

    operation: str
    reason: str
    bytes: int


_watched: list[dict[int, Whole]] = []  # one for each `watching`


@contextmanager
def watching() -> Iterator[dict[int, Whole]]:
    """Collect the tensors that forward passes save whole meanwhile, except parameters and inputs."""
    uncoded: dict[int, Whole] = {}
    _watched.append(uncoded)
    try:
        yield uncoded
    finally:
        _watched.pop()


def watch(x: Tensor, operation: str, reason: str) -> None:
    """Record a tensor that is saved whole."""
    for uncoded in _watched if is_plain(x) else ():
        uncoded.setdefault(storage_of(x), Whole(operation, reason, x.untyped_storage().nbytes()))
