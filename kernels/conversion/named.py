"""Which activations a module's code names: those that its forward calls, and those that it holds."""

import dis
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch import nn

from kernels.conversion import recognise
from kernels.conversion.known import Known

_PLAIN = vars(nn.Module())
_METHODS = ("relu", "sigmoid", "tanh")  # of tensors


def called(module: nn.Module) -> dict[str, bool]:
    """The catalogue's names of the activations that the forward of a module's class calls, as its code says; and
    whether that is sure: x.relu() is the tensor's, or a submodule of x, and x * sigmoid(y) may be silu or not."""
    forward = inspect.unwrap(type(module).forward)
    if not isinstance(forward, FunctionType):
        return {}
    found: dict[str, bool] = {}
    for name, sure in _named(forward.__code__, forward.__globals__):
        found[name] = sure or found.get(name, False)
    if "sigmoid" in found and _multiplies(forward.__code__):
        found.setdefault("silu", False)
    return found


def held(module: nn.Module) -> dict[str, bool]:
    """Likewise of the functions that a module holds in lists and dictionaries, or that functions it holds call.

    They are rerouted as those that its forward calls; nobody can say beforehand whether it does.
    """
    found: dict[str, bool] = {}
    own = {key: value for key, value in vars(module).items() if key not in _PLAIN and key != "forward"}
    for value in own.values():
        inner = [*value.values()] if isinstance(value, dict) else [*value] if isinstance(value, list | tuple) else []
        for one in inner:
            known = recognise.module(one) if type(one) in recognise.REPLACEMENTS else recognise.function(one)
            if isinstance(known, Known):
                found[known.called] = False
        for one in (value, *inner):
            if isinstance(one, FunctionType) and recognise.function(one) is None:
                found |= {name: False for name, _ in _named(one.__code__, one.__globals__)}
    return found


def _named(code: CodeType, names: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    value: Any = None  # of the expression read so far; a tensor's attribute is not known
    for one in dis.get_instructions(code):
        if one.opname == "LOAD_GLOBAL":
            value = names.get(one.argval)
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if value is None and one.argval in _METHODS:
                yield one.argval, False
            if value is not _SELF:
                value = getattr(value, one.argval, None) if isinstance(value, ModuleType) else None
        elif one.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):  # some Pythons load two at once
            last = one.argval[-1] if isinstance(one.argval, tuple) else one.argval
            value = _SELF if last == "self" else None
        if (known := recognise.function(value)) is not None:
            yield known.function, True
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(constant, names)


_SELF = object()  # its attributes are no tensors, or not known to be


def _multiplies(code: CodeType) -> bool:
    """Whether there are products of what nothing changes in place meanwhile."""
    signs = {one.argrepr for one in dis.get_instructions(code) if one.opname == "BINARY_OP"}
    in_place = any(name.endswith("_") and not name.endswith("__") for name in code.co_names)
    stores = any(one.opname == "STORE_SUBSCR" for one in dis.get_instructions(code))
    return "*" in signs and not in_place and not stores and not any(sign.endswith("=") for sign in signs)
