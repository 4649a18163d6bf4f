"""PyTorch's modes: leaving all that are active and entering them again; and a mode of ours, that sees operations."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Self

from actfit.kernels import private


class DispatchMode:
    """A context manager that sees each operation below autograd, in `__torch_dispatch__` of a subclass.

    Its base is not torch's TorchDispatchMode, which is touched only when it is entered.
    """

    def __enter__(self) -> Self:
        mode = _dispatching()(self.__torch_dispatch__)
        mode.__enter__()
        vars(self).setdefault("_entered", []).append(mode)
        return self

    def __exit__(self, *error: Any) -> None:
        vars(self)["_entered"].pop().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


@cache
def _dispatching() -> Any:
    class Dispatching(private.TorchDispatchMode):
        supports_higher_order_operators = True  # as those that a checkpoint's graph draws random numbers by

        def __init__(self, sees: Callable[..., Any]) -> None:
            super().__init__()
            self.sees = sees

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self.sees(func, types, args, kwargs)

    return Dispatching


@contextmanager
def without_dispatch_modes() -> Iterator[None]:
    """Leaves all dispatch modes while it is entered. PyTorch has flags besides, by which Dynamo captures nothing."""
    module = private.python_dispatch
    flags = {name: value for name, value in vars(module).items() if name.startswith("_is_in_") and value is True}
    with private.disable_current_modes():
        vars(module).update(dict.fromkeys(flags, False))
        try:
            yield
        finally:
            vars(module).update(flags)


@contextmanager
def without_function_modes() -> Iterator[list[Any]]:
    """Leaves all torch function modes while it is entered; gives them, the outermost first."""
    modes = private.function_mode_stack()
    for _ in modes:
        private.pop_function_mode()
    try:
        yield modes
    finally:
        for mode in modes:
            private.push_function_mode(mode)


@contextmanager
def within_function_modes(modes: Sequence[Any]) -> Iterator[None]:
    """Enters modes that `without_function_modes` gave."""
    for mode in modes:
        private.push_function_mode(mode)
    try:
        yield
    finally:
        for _ in modes:
            private.pop_function_mode()


def fakes_are_made() -> bool:
    """Whether a FakeTensorMode is active."""
    return private.in_dispatch_mode() and any(isinstance(mode, private.FakeTensorMode) for mode in private.mode_stack())
