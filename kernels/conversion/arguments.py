"""What `convert` may be given."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kernels.approx_backprop.how import How
from kernels.conversion.layers import METHOD
from kernels.errors import KernelError
from kernels.memory.measure import has_forward
from kernels.names import ACCOUNTINGS, KNOWN, MAX_BITS


def check(
    model: Any, method: Any, inputs: Any, bits: Any, scheme: Any, coefficients: Any, bound: Any, accounting: Any
) -> None:
    """Raise KernelError for arguments of `convert` that cannot be honoured."""
    if not isinstance(model, nn.Module):
        raise KernelError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise KernelError(
            "model must be a module in Python, got a script of torch.jit; nor can what is converted be one"
        )
    if inputs is not None and not has_forward(model):
        raise KernelError(
            f"model must have a forward to be run with inputs, got {type(model).__name__}; give the model that it is"
            " part of, or leave inputs out and name a method"
        )
    if accounting not in ACCOUNTINGS:
        raise KernelError(f"accounting must be one of {', '.join(ACCOUNTINGS)}, got {accounting!r}")
    if not isinstance(method, str):
        hint = "; give inputs by name, as convert(model, inputs=x)"
        raise KernelError(f"method must be one of {', '.join(KNOWN)}, got a {type(method).__name__}{hint}")
    if method not in KNOWN:
        raise KernelError(f"method must be one of {', '.join(KNOWN)}, got {method!r}")
    if not isinstance(inputs, Tensor | tuple | list | Mapping | None):
        raise KernelError(f"inputs must be a tensor, a tuple or a mapping, got {type(inputs).__name__}")
    if isinstance(inputs, Mapping) and not all(isinstance(name, str) for name in inputs):
        raise KernelError(f"inputs must be a mapping of names, as of keyword arguments, got {list(inputs)!r}")
    if method == "auto" and inputs is None:
        raise KernelError(
            "inputs must be given for method='auto', which measures with them, as convert(model, inputs=x); or name a"
            " method, as convert(model, 'invact')"
        )
    if method == METHOD:
        How(**{name: one for name, one in (("bits", bits), ("scheme", scheme)) if one is not None})
        bits = None
    elif scheme is not None:
        raise KernelError(f"scheme must go with method={METHOD!r}, got method={method!r}")
    if method != "fewbit" and bits is not None:
        raise KernelError(f"bits must go with method='fewbit' or {METHOD!r}, got method={method!r}")
    if method != "fewbit" and coefficients is not None:
        raise KernelError(f"coefficients must go with method='fewbit', got method={method!r}")
    if bits is not None and (not isinstance(bits, int) or isinstance(bits, bool) or not 1 <= bits <= MAX_BITS):
        raise KernelError(f"bits must be a whole number from 1 to {MAX_BITS}, got {bits!r}")
    if bound is not None:
        if method != "auto":
            raise KernelError(f"max_gradient_error must go with method='auto', got method={method!r}")
        if not isinstance(bound, int | float) or isinstance(bound, bool) or not 0 <= bound < math.inf:
            raise KernelError(f"max_gradient_error must be a number of 0 or more, got {bound!r}")


def patterns(given: str | Iterable[str] | None) -> list[str] | None:
    """A name or several, as a list. Raises KernelError for what is neither."""
    if given is None:
        return None
    found = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [given]
    for one in found:
        if not isinstance(one, str):
            raise KernelError(f"include and exclude must be names or patterns, got {one!r}")
    return found
