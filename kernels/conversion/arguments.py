"""Validates the arguments of `convert`."""

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import Any

import torch
from torch import Tensor, nn

from kernels.errors import KernelError, shown
from kernels.memory.measure import has_forward
from kernels.methods.auto import Auto
from kernels.methods.method import Method
from kernels.methods.registry import make, of_models
from kernels.names import ACCOUNTINGS
from kernels.validate import resolved


def validated_method(model: Any, name: Any, inputs: Any, accounting: Any, **options: Any) -> Method:
    """The method that the arguments of `convert` name. Raises KernelError for invalid arguments."""
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
    methods = of_models()
    if not isinstance(name, str):
        hint = "; give inputs by name, as convert(model, inputs=x)"
        raise KernelError(f"method must be one of {', '.join(methods)}, got a {type(name).__name__}{hint}")
    files = options["coefficients"]
    if isinstance(files, Mapping):
        files = next(iter(methods_by_pattern(name, options).values())).arguments()["coefficients"]
    method = make(name, methods, **{**options, "coefficients": resolved(files)})
    if not isinstance(inputs, Tensor | tuple | list | Mapping | None):
        raise KernelError(f"inputs must be a tensor, a tuple or a mapping, got {type(inputs).__name__}")
    if isinstance(inputs, Mapping) and not all(isinstance(name, str) for name in inputs):
        raise KernelError(f"inputs must be a mapping of names, as of keyword arguments, got {list(inputs)!r}")
    if isinstance(method, Auto) and inputs is None:
        raise KernelError(
            "inputs must be given for method='auto', which measures with them, as convert(model, inputs=x); or name a"
            " method, as convert(model, 'invact')"
        )
    return method


def methods_by_pattern(name: str, options: Mapping[str, Any]) -> dict[str, Method]:
    """A method for each pattern of `coefficients`, with its file. Raises KernelError for an invalid pattern or file."""
    files = options["coefficients"]
    if not files:
        raise KernelError("coefficients must name a site or more, each with a file, got an empty mapping")
    for pattern, file in files.items():
        if not isinstance(pattern, str):
            raise KernelError(f"coefficients must map sites, or patterns with *, to files, got {shown(pattern)}")
        if not isinstance(file, str | PathLike) or not fspath(file):
            raise KernelError(f"coefficients must map {pattern!r} to the path of a file, got {shown(file)}")
    known = of_models()
    return {key: make(name, known, **{**options, "coefficients": resolved(file)}) for key, file in files.items()}


def patterns(given: str | Iterable[str] | None) -> list[str] | None:
    """One name or several, as a list. Raises KernelError for anything else."""
    if given is None:
        return None
    names = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [given]
    for name in names:
        if not isinstance(name, str):
            raise KernelError(f"include and exclude must be names or patterns, got {name!r}")
    return names
