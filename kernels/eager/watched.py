"""What is kept as it is, and why, for reports."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from kernels.eager.tensors import is_plain, storage_of


@dataclass(frozen=True)
class Whole:
    """A tensor that is kept as it is: the name of the function that saves it, why, and its bytes."""

    operation: str
    reason: str
    bytes: int


_watched: list[dict[int, Whole]] = []  # one for each `watching`


@contextmanager
def watching() -> Iterator[dict[int, Whole]]:
    """What is kept as it is by forward passes that run meanwhile, but for parameters and inputs."""
    found: dict[int, Whole] = {}
    _watched.append(found)
    try:
        yield found
    finally:
        _watched.pop()


def watch(x: Tensor, operation: str, reason: str) -> None:
    """Take a tensor down."""
    for found in _watched if is_plain(x) else ():
        found.setdefault(storage_of(x), Whole(operation, reason, x.untyped_storage().nbytes()))
