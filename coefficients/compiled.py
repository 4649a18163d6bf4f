"""Functions that Numba compiles on the first call, and caches for the next process where it can write."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import config, njit

Function = TypeVar("Function", bound=Callable[..., object])


IS_ON = not config.DISABLE_JIT  # type: ignore[attr-defined]  # else plain Python runs: NUMBA_DISABLE_JIT=1
# For vector instructions: no checks for division by 0; multiply-adds are fused, as those of GPUs are.
_VECTORS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}


def compiled(function: Function, nogil: bool = False, **options: Any) -> Function:
    """The function, compiled; cached beside its module, or else in the user's cache (NUMBA_CACHE_DIR).

    nogil: whether other threads of Python run meanwhile. options: further ones of Numba.
    """
    try:
        return cast(Function, njit(cache=True, nogil=nogil, **options)(function))
    except RuntimeError:  # neither is writable, as in a container: compiled in each process
        return cast(Function, njit(nogil=nogil, **options)(function))


def compiled_loop(function: Function) -> Function:
    """A loop over floating-point numbers, compiled to vector instructions where the processor has them."""
    return compiled(function, nogil=True, **_VECTORS)


def inlined(function: Function) -> Function:
    """A function of numbers for `compiled_loop`, compiled inside the loop: a call would keep it from vectors."""
    return cast(Function, njit(forceinline=True, **_VECTORS)(function))
