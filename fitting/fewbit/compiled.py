"""Functions that Numba compiles on the first call, and caches for the next process where it can write."""

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """The function, compiled; cached beside its module, or else in the user's cache (NUMBA_CACHE_DIR)."""
    try:
        return cast(Function, njit(cache=True)(function))
    except RuntimeError:  # neither is writable, as in a container: compiled in each process
        return cast(Function, njit(function))
