"""Functions that Numba compiles when they are first called, and keeps for the next process where it may."""

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """The function, compiled. It is kept beside its module, or else in the user's cache (NUMBA_CACHE_DIR)."""
    try:
        return cast(Function, njit(cache=True)(function))
    except RuntimeError:  # neither can be written to, as in a container: it is compiled in each process
        return cast(Function, njit(function))
