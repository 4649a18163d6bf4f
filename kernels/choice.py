"""From what a user asks for to a kernel and the numbers it is given; all arguments are checked here."""

import difflib
import math
import operator
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch

from coefficients import CoefficientError, load
from kernels.errors import KernelError, shown
from kernels.kernel import DTYPES, MAX_BITS, METHODS, Kernel, facts, parse, table, unbounded
from kernels.names import DEFAULT_BITS as DEFAULT_BITS
from kernels.parameters import LEAST, check_range, number
from kernels.stock import FUNCTIONS

ALIASES = {"swish": "silu"}
DIVISORS = {("softplus", "beta"), ("celu", "alpha")}


def choose(
    function: str,
    params: Mapping[str, float],
    method: str,
    bits: int | None = None,
    coefficients: str | PathLike[str] | None = None,
) -> tuple[str, tuple[float, ...]]:
    """The key of the kernel, and the function's parameters in their order.

    Raises KernelError for what there is not, and for what the method cannot do, with the reason.
    """
    function = ALIASES.get(_word("function", function), function)
    _word("method", method)
    values = tuple((name, number(name, value)) for name, value in params.items())
    bits = None if bits is None else _whole(bits)
    if coefficients is None:
        return _choose(function, values, method, bits, None, None)
    if not isinstance(coefficients, str | PathLike) or not fspath(coefficients):
        raise KernelError(f"coefficients must be the path of a file, got {shown(coefficients)}")
    path = Path(coefficients).absolute()
    written = (path.stat().st_mtime_ns, path.stat().st_size) if os.path.isfile(path) else _WRITTEN.get(str(path))
    chosen = _choose(function, values, method, bits, str(path), written)
    if written is not None:
        _WRITTEN[str(path)] = written
    return chosen


# When files were read that have been: a layer goes on with its table where the file is gone.
_WRITTEN: dict[str, tuple[int, int]] = {}


def resolved(coefficients: Any) -> Any:
    """The path from the root: a layer's forward may run in another folder. What is no path stays, for `choose`."""
    given = isinstance(coefficients, str | PathLike) and fspath(coefficients)
    return os.path.abspath(coefficients) if given else coefficients


@lru_cache(maxsize=4096, typed=True)
def _choose(
    function: str,
    params: tuple[tuple[str, float], ...],
    method: str,
    bits: int | None,
    file: str | None,
    written: tuple[int, int] | None,
) -> tuple[str, tuple[float, ...]]:
    """`choose`, remembered as long as the file stays as it was when `written`."""
    if function not in FUNCTIONS:
        raise KernelError(
            f"function must be one of {', '.join(FUNCTIONS)}, got {shown(function)}{_near(function, FUNCTIONS)}"
        )
    known = facts(function)
    for name in dict(params):
        if name not in known.PARAMETERS:
            takes = ", ".join(known.PARAMETERS) or "none"
            raise KernelError(f"parameter must be one that {function} has ({takes}), got {name!r}")
    values = {**known.PARAMETERS, **dict(params)}
    for name, value in values.items():
        if not math.isfinite(value):
            raise KernelError(f"{name} must be finite, got {value}")
        check_range(name, value, torch.float32)
        if value == 0 and (function, name) in DIVISORS:
            raise KernelError(f"{name} must not be 0: {function} divides by it")
        if abs(value) < LEAST and (function, name) in DIVISORS:
            raise KernelError(f"{name} must be at least {LEAST:.3g} in size, got {value:.3g}: {function} divides by it")
    if function == "hardtanh" and values["min_val"] > values["max_val"]:
        raise KernelError(
            f"max_val must be at least min_val, got min_val={values['min_val']:g} and max_val={values['max_val']:g}"
        )
    if function == "softshrink" and values["lambd"] < 0:
        raise KernelError(f"lambd must be at least 0, got {values['lambd']:g}")
    if method not in ("stock", *METHODS):
        names = ("stock", *METHODS)
        raise KernelError(f"method must be one of {', '.join(names)}, got {shown(method)}{_near(method, names)}")
    if method != "fewbit" and (bits is not None or file is not None):
        raise KernelError(f"bits and coefficients must go with method='fewbit', got method={method!r}")
    if method == "stock":
        return "", tuple(values.values())
    if method == "fewbit":
        kernel = _fewbit(function, values, bits, file)
    else:
        if method.startswith("invact"):
            _check_limits(function, values, method)
        kernel = Kernel(function, method)
    return kernel.key, tuple(values.values())


def _word(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise KernelError(f"{what} must be a name, got {shown(value)}")
    return value


def _whole(bits: object) -> int:
    try:
        return operator.index(bits if not isinstance(bits, bool) else None)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise KernelError(f"bits must be a whole number from 1 to {MAX_BITS}, got {shown(bits)}") from None


def sign_bit(function: str, params: Mapping[str, float]) -> tuple[str, tuple[float, ...]]:
    """The kernel that stores ±(y - min f), for `ActLinear`.

    Raises KernelError where f has not two sides of a minimum, or has parameters.
    """
    _, values = choose(function, params, "invact")
    known = facts(function)
    if known.SIDES != 2 or known.MINIMUM is None or known.PARAMETERS:
        raise KernelError(
            f"activation must fall to a minimum and rise again, for the sign to tell the side, got {function};"
            " Linear after an activation with method='invact' saves as little"
        )
    return Kernel(function, "invact-sign-bit").key, values


def _fewbit(function: str, values: dict[str, float], bits: int | None, file: str | None) -> Kernel:
    known = facts(function)
    if file is not None:
        return _own_table(function, values, bits, file)
    if unbounded(function):
        raise KernelError(
            f"method='fewbit' must have a function whose f' has a bound, got {function}: the last level of a table is"
            " as good as none beyond it; use method='invact' or 'forward-ad', or fit a table for the range of your"
            f" data: python -m fitting.fewbit --fn {function} --bits {bits or DEFAULT_BITS} --domain A B --out"
            " mine.json, and give coefficients='mine.json'"
        )
    if values != known.PARAMETERS:
        given = ", ".join(f"{name}={value:g}" for name, value in values.items())
        flags = " ".join(f"--param {name}={value!r}" for name, value in values.items())
        raise KernelError(
            f"method='fewbit' has tables for the default parameters of {function}, got {given}; make one: python -m"
            f" fitting.fewbit --fn {function} {flags} --bits {bits or DEFAULT_BITS} --out mine.json, and give"
            " coefficients='mine.json'"
        )
    wanted = DEFAULT_BITS if bits is None else bits
    if not 1 <= wanted <= MAX_BITS:
        raise KernelError(f"bits must be a whole number from 1 to {MAX_BITS}, got {shown(wanted)}")
    if wanted not in known.TABLES:
        there = ", ".join(map(str, known.TABLES))
        raise KernelError(
            f"bits must be one that {function} has a table for ({there}), got {wanted}; make one: python -m"
            f" fitting.fewbit --fn {function} --bits {wanted} --out mine.json, and give coefficients='mine.json'"
        )
    return Kernel(function, "fewbit", wanted)


def _own_table(function: str, values: dict[str, float], bits: int | None, file: str) -> Kernel:
    try:
        document = load(file)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise KernelError(f"coefficients must be a file that can be read, got {file!r}: {reason}") from None
    except CoefficientError as error:
        raise KernelError(f"coefficients must be a file that `python -m coefficients check` accepts: {error}") from None
    got = f"{document['method']} of {document['function']['name']}"
    if document["method"] != "fewbit" or document["function"]["name"] != function:
        raise KernelError(f"coefficients must be a fewbit file of {function}, got {got} ({file})")
    if document["function"]["params"] != values:
        raise KernelError(f"coefficients must be for {values}, got {document['function']['params']} ({file})")
    if len(document["solution"]["levels"]) < 2:
        raise KernelError(
            f"coefficients must have two levels or more, got one ({file}): f' is constant; use 'forward-ad'"
        )
    if bits is not None and bits != document["options"]["bits"]:
        raise KernelError(f"bits must be those of the file, {document['options']['bits']}, got {bits}; leave them out")
    kernel = Kernel(function, "fewbit", document["options"]["bits"], f"{file}#{document['sha256'][:16]}")
    try:
        table(kernel.key)  # read now, and remembered
    except CoefficientError as error:
        raise KernelError(f"coefficients must be of {function}: {error}") from None
    return kernel


def _check_limits(function: str, values: dict[str, float], method: str) -> None:
    known = facts(function)
    for name, least in known.LIMITS.items():
        if not values[name] >= least:
            raise KernelError(
                f"{name} must be at least {least:g} for method={method!r}, got {values[name]:g}: below, the output of"
                f" {function} does not tell f'; use method='forward-ad'"
            )
    if method == "invact-precision-bit" and known.SIDES == 1:
        raise KernelError(
            f"method='invact-precision-bit' must have a side to store, got {function}, whose output alone tells f';"
            " use method='invact', which saves nothing but the output"
        )


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.lower()[:80], list(known), n=2, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def numbers_for(key: str, params: tuple[float, ...], dtype: torch.dtype) -> list[float]:
    """The parameters as the kernel takes them: as the dtype holds them, where a stored y is compared with them."""
    kernel = parse(key)
    if dtype not in DTYPES:
        names = ", ".join(str(one).removeprefix("torch.") for one in DTYPES)
        raise KernelError(f"input must be a tensor of {names}, got {str(dtype).removeprefix('torch.')}")
    for name, value in zip(kernel.facts.PARAMETERS, params, strict=True):
        check_range(name, value, dtype)
    if kernel.method.startswith("invact") and kernel.facts.ROUNDED:
        return [float(torch.tensor(value, dtype=torch.float64, device="cpu").to(dtype)) for value in params]
    return list(params)
