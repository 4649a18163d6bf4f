"""Reads a module's bytecode and attributes for the activations that its forward may call."""

import dis
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch import nn

from kernels.conversion import recognise
from kernels.conversion.function import Function

_PLAIN = vars(nn.Module())
_METHODS = ("relu", "sigmoid", "tanh")  # of tensors
_SELF = object()  # stands for `self`, whose attributes are not known to be tensors


def functions_called(module: nn.Module) -> dict[str, bool]:
    """The catalogue's names of the activations that the forward of a module's class calls, read from its bytecode.

    The value says whether the call is certain: x.relu() may be a submodule of x instead of the tensor's method, and
    x * sigmoid(y) need not be silu.
    """
    forward = inspect.unwrap(type(module).forward)
    if not isinstance(forward, FunctionType):
        return {}
    names: dict[str, bool] = {}
    for name, certain in _named(forward.__code__, forward.__globals__):
        names[name] = certain or names.get(name, False)
    if "sigmoid" in names and _multiplies(forward.__code__):
        names.setdefault("silu", False)
    return names


def functions_held(module: nn.Module) -> dict[str, bool]:
    """Likewise for functions in the module's lists and dictionaries, and for those that its own functions call.

    Their calls are rerouted like those in its forward, but only a run shows whether there are any.
    """
    names: dict[str, bool] = {}
    own = {key: value for key, value in vars(module).items() if key not in _PLAIN and key != "forward"}
    for value in own.values():
        items = [*value.values()] if isinstance(value, dict) else [*value] if isinstance(value, list | tuple) else []
        for item in items:
            known = recognise.module(item) if type(item) in recognise.REPLACEMENTS else recognise.function(item)
            if isinstance(known, Function):
                names[known.torch_name] = False
        for item in (value, *items):
            if isinstance(item, FunctionType) and recognise.function(item) is None:
                names |= {name: False for name, _ in _named(item.__code__, item.__globals__)}
    return names


def _named(code: CodeType, names: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    value: Any = None  # of the expression read so far; None if unknown, as for tensors
    for instruction in dis.get_instructions(code):
        operation, argument = instruction.opname, instruction.argval
        if operation == "LOAD_GLOBAL":
            value = names.get(argument)
        elif operation in ("LOAD_ATTR", "LOAD_METHOD"):
            if value is None and argument in _METHODS:
                yield argument, False
            if value is not _SELF:
                value = getattr(value, argument, None) if isinstance(value, ModuleType) else None
        elif operation.startswith(("LOAD_FAST", "LOAD_DEREF")):  # some Pythons load two at once
            last = argument[-1] if isinstance(argument, tuple) else argument
            value = _SELF if last == "self" else None
        if (function := recognise.function(value)) is not None:
            yield function.name, True
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(constant, names)


def _multiplies(code: CodeType) -> bool:
    """Whether the code multiplies, and changes nothing in place."""
    instructions = list(dis.get_instructions(code))
    signs = {instruction.argrepr for instruction in instructions if instruction.opname == "BINARY_OP"}
    in_place = any(name.endswith("_") and not name.endswith("__") for name in code.co_names)
    stores = any(instruction.opname == "STORE_SUBSCR" for instruction in instructions)
    return "*" in signs and not in_place and not stores and not any(sign.endswith("=") for sign in signs)
