"""PyTorch's modes: leaving all that are active and entering them again; and a mode of ours, that sees operations."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Self

from actfit.kernels import private


class DispatchMode:
    """A context manager that sees each operation below autograd, in `__torch_dispatch__` of a subclass.

    Its base is not torch's TorchDispatchMode, which is touched only when it is entered.

    Attributes
    ----------
    refused
        What an operation on fake tensors raised that asked for numbers. A model that catches it would do something else
        with numbers.
    """

    refused: Exception | None = None

    def __enter__(self) -> Self:
        mode = _dispatching()(self)
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

        def __init__(self, seer: DispatchMode) -> None:
            super().__init__()
            self.seer = seer

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            try:
                return self.seer.__torch_dispatch__(func, types, args, kwargs)
            except (private.DataDependentOutputException, private.DynamicOutputShapeException) as error:
                self.seer.refused = type(error)(*error.args)  # without what its traceback holds
                raise

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


def are_left_for_capture(compiles: bool) -> bool:
    """Whether Dynamo may capture with the dispatch modes that are active left meanwhile; the graphs run in them.

    Of fake tensors, or if all are of ours, which see what PyTorch's own kernels do, but not what Inductor compiles.
    """
    if not private.in_dispatch_mode() or fakes_are_made():
        return True
    return not compiles and all(isinstance(mode, _dispatching()) for mode in private.mode_stack())


def fakes_are_made() -> bool:
    """Whether a FakeTensorMode is active."""
    return private.in_dispatch_mode() and any(isinstance(mode, private.FakeTensorMode) for mode in private.mode_stack())
