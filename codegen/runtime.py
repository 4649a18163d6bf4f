"""`elementwise`: a Python function of one tensor, written with torch's operations, as one fused kernel pair, emitted
when it is first called.

Forward computes the results and their derivatives together, and saves the derivatives for backward. The function is
traced by calling it once with a stand-in (see `actfit.codegen.traced`), differentiated, and emitted by codegen.
"""

import functools
import itertools
import numbers
import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from actfit.fitting.errors import InputError
from actfit.kernels import private
from actfit.kernels.autograd import Fused, in_memory_order
from actfit.kernels.autograd import elementwise as run_kernel
from actfit.kernels.engine.elements import dtype_name
from actfit.kernels.engine.emitted import Emitted, module_of, register_emitted
from actfit.kernels.errors import KernelError
from actfit.kernels.methods.method import register_kernel
from actfit.kernels.stock import clamp_passes_at_ends, transformed
from actfit.kernels.validate import check_tensor

_OBJECTS: WeakValueDictionary[str, "Elementwise"] = WeakValueDictionary()
_COUNT = itertools.count()
_NUMBERS: dict[type, Callable[[Any], Any]] = {
    **{torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool},
    **{numbers.Integral: int, numbers.Real: float},
}
_LOCK = threading.RLock()
# Relative, where a file's function is compared with a Python function: kernels compute in float32, of 24 bits, and two
# spellings of a function differ by some units there.
_SAME = 2.0**-20


def elementwise(function: Callable[..., Any], coefficients: Any = None) -> "Elementwise":
    """The function as a kernel pair: forward gives its results and derivatives, backward multiplies.

    Under a trace or a transform of torch.func the function itself runs.

    Parameters
    ----------
    function
        Of one tensor, then any numbers, strings or bools, which are constants of the kernel. It gives one tensor or a
        tuple of them, of the shape and dtype of x, made from x by element-wise operations of torch: arithmetic, torch,
        torch.nn.functional, methods. It is called once for each set of constants, at the first use.
    coefficients
        A fit of the function, for what backward reads instead of the derivative: the path of a fewbit or invact file
        (str or PathLike), or its document (dict). Then it has one result, and f' the file's error.

    Raises
    ------
    KernelError
        By name, for anything else: branches on values, reductions, other tensors, operations that are not known, in
        place or random; and for a file that is not valid, or of another function.
    """
    if not callable(function):
        raise KernelError(f"elementwise must be given a function of a tensor, got {type(function).__name__}")
    if isinstance(function, FunctionType) and _is_method(function):
        name = function.__name__
        raise KernelError(
            f"elementwise must be given a function of a tensor, got {name}, whose first parameter is self; write"
            f" self.{name} = elementwise(self.{name}) in __init__"
        )
    return Elementwise(function, coefficients)


def _is_method(function: FunctionType) -> bool:
    """Whether it is written in a class, and its first parameter is self."""
    place = function.__qualname__.rpartition(".")[0]
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    return bool(place) and not place.endswith("<locals>") and parameters[:1] == ("self",)


class Elementwise:
    """The result of `elementwise`. It is immutable: copies are the object itself; it is pickled by its function."""

    def __init__(self, function: Callable[..., Any], coefficients: Any = None) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self.handle = f"{self.name}#{next(_COUNT)}"
        self._programs: dict[Any, Any] = {}
        _OBJECTS[self.handle] = self
        self.coefficients = coefficients
        if coefficients is not None:
            from actfit.codegen.fitted import read  # sympy takes a second to import

            self.fitted = self._checked(lambda: read(coefficients))
            self._fits: set[str] = set()  # keys of programs that are the file's function
            text = self._checked(lambda: self.fitted.text("torch", "float32"))
            register_emitted(
                Emitted(self.fitted.key, 1, lambda *of: text if of[0] == "torch" else self.fitted.text(*of))
            )
            register_kernel(self.fitted.spec)

    def __call__(self, x: Tensor, /, *args: Any, **kwargs: Any) -> Any:
        """The function's results."""
        return _run(x, self.handle, args, kwargs)

    def __repr__(self) -> str:
        return f"elementwise({self.name})"

    def __copy__(self) -> "Elementwise":
        return self

    def __deepcopy__(self, _: Any) -> "Elementwise":
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        place: Any = sys.modules.get(self.__module__)
        path = str(getattr(self, "__qualname__", self.name))
        for part in path.split("."):
            place = getattr(place, part, None)
        return path if place is self else (elementwise, (self.function, self.coefficients))

    def expressions(self, *args: Any, **kwargs: Any) -> tuple[tuple[str, str], ...]:
        """Each result and its derivative as text, for these constants."""
        texts: tuple[tuple[str, str], ...] = self.program(args, kwargs).expressions
        return texts

    def source(self, target: str = "triton", dtype: str = "float32", **constants: Any) -> str:
        """The emitted code as a module that stands alone.

        Parameters
        ----------
        target
            "triton" or "torch".
        dtype
            "float32", "bfloat16" or "float16".
        **constants
            Of the function.
        """
        program = self.program((), constants)
        return str(self._checked(lambda: program.text(target, dtype)))

    def program(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The traced function for these constants; it is traced once.

        Raises `KernelError` as `elementwise` does.
        """
        args = tuple(self._plain(value, "an argument") for value in args)
        kwargs = {name: self._plain(value, name) for name, value in kwargs.items()}
        key = (
            tuple((type(value), value) for value in args),
            tuple((name, type(value), value) for name, value in kwargs.items()),
        )
        with _LOCK:
            if key not in self._programs:
                from actfit.codegen.fused import fuse  # sympy takes a second to import
                from actfit.codegen.operations import CLAMP_PASSES

                CLAMP_PASSES.set(clamp_passes_at_ends())  # the same in the whole process
                recorded = torch.is_grad_enabled  # not within torch.no_grad(), nor in a torch.autograd.Function
                # Without modes numbers in tensors can be read while torch.compile is running.
                with private.disable_current_modes(), torch.enable_grad():
                    program = self._checked(lambda: fuse(self.function, self.name, args, kwargs, recorded))
                register_emitted(Emitted(program.key, program.count, program.text))
                self._programs[key] = program
            return self._programs[key]

    def kernel(self, program: Any, x: Tensor) -> str:
        """The key of the kernel of its coefficients, for x; raises KernelError for a dtype that they do not serve."""
        fitted, name = self.fitted, self.name
        if program.key not in self._fits:
            if program.several:
                raise KernelError(f"{name}: with coefficients it must have one result, got a tuple of {program.count}")
            with private.disable_current_modes():
                points = torch.linspace(*fitted.domain, 257, dtype=torch.float64)
                (own,) = module_of(program.key, "torch", "float32").values(points)
                other = module_of(fitted.key, "torch", "float32").forward(points, ())
                unlike = ~torch.isclose(own, other, rtol=_SAME, atol=_SAME, equal_nan=True)
                if unlike.any():
                    of, place = fitted.subject, int(unlike.nonzero()[0])
                    raise KernelError(
                        f"{name}: coefficients must be of this function, got {of.name} = {of.activation.expr} in"
                        f" {fitted.origin}: {other[place]:g} at x = {points[place]:g}, where this one is {own[place]:g}"
                    )
            self._fits.add(program.key)
        if dtype_name(x.dtype) not in fitted.dtypes:
            raise KernelError(
                f"{name}: its tensor must be of {fitted.dtypes[0]}, which the formula in {fitted.origin} is for, got"
                f" {dtype_name(x.dtype)}; fit another: actfit invact --dtype {dtype_name(x.dtype)}"
            )
        return str(fitted.spec.key)

    def _plain(self, value: Any, what: str) -> Any:
        """A constant of the kernel; numbers of numpy and symbolic numbers of torch.compile become Python's."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        for kind, plain in _NUMBERS.items():
            if isinstance(value, kind):
                return plain(value)
        raise KernelError(
            f"{self.name}: {what} must be a number, a string or a bool besides the one tensor, got"
            f" {type(value).__name__}; make a function of one tensor of it, and do the rest outside"
        )

    def _checked(self, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except InputError as error:
            raise KernelError(f"{self.name}: {error}") from None


@torch.compiler.allow_in_graph  # see `actfit.kernels.activation._apply`
def _run(x: Tensor, handle: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The checks, then the function."""
    wrapped = _OBJECTS[handle]
    if not isinstance(x, Tensor) and hasattr(x, "__torch_function__"):  # a stand-in, codegen's or torch.fx's
        return wrapped.function(x, *args, **kwargs)
    check_tensor(f"{wrapped.name}: its first argument", x)
    program = wrapped.program(args, kwargs)
    for index, kind in enumerate(program.kinds):
        _check_kind(x, kind, f"{wrapped.name}: result {index}")
    if transformed():
        return wrapped.function(x, *args, **kwargs)
    if wrapped.coefficients is not None:
        return run_kernel(x, wrapped.kernel(program, x), ())
    if torch.is_grad_enabled() and x.requires_grad:
        results = in_memory_order(lambda rows: Fused.apply(rows, program.key)[: program.count], x)
    else:
        results = in_memory_order(lambda rows: torch.ops.actfit.fused_forward(rows, program.key, False), x)
    return results if program.several else results[0]


def _check_kind(x: Tensor, kind: str, what: str) -> None:
    """Raise KernelError unless a result's dtype, in the words of codegen.traced, is that of x."""
    narrow = x.dtype in (torch.float16, torch.bfloat16)
    if (kind == "float32" and x.dtype != torch.float32) or (kind == "wider" and narrow):
        raise KernelError(
            f"{what} must have the dtype of its tensor, {x.dtype}, got torch.float32; end with .to(x.dtype)"
        )
