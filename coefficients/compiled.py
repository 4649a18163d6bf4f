"""Functions that Numba compiles on the first call, and caches for the next process where it can write."""

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function, nogil: bool = False) -> Function:
    """The function, compiled; cached beside its module, or else in the user's cache (NUMBA_CACHE_DIR).

    nogil: whether other threads of Python run meanwhile.
    """
    try:
        return cast(Function, njit(cache=True, nogil=nogil)(function))
    except RuntimeError:  # neither is writable, as in a container: compiled in each process
        return cast(Function, njit(nogil=nogil)(function))
