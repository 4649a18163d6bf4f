"""All methods by name, and methods made from users' arguments."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from actfit.kernels.errors import KernelError, shown
from actfit.kernels.methods.few_bit import FewBit
from actfit.kernels.methods.forward_derivative import ForwardDerivative
from actfit.kernels.methods.from_output import FromOutput, PrecisionBit
from actfit.kernels.methods.method import Method

# Methods of single functions and modules: actfit.functional and actfit.nn take these and stock.
ELEMENTWISE: dict[str, type[Method]] = {
    method.name: method for method in (ForwardDerivative, FewBit, FromOutput, PrecisionBit)
}
DEFAULT = FromOutput.name


def register(method: type[Method]) -> type[Method]:
    """Add a method of single functions; may be used as a class decorator."""
    ELEMENTWISE[method.name] = method
    return method


def make(name: object, known: Mapping[str, type[Method]], **options: Any) -> Method:
    """The method of that name, with the options that are not None; raises KernelError for another name or option."""
    if not isinstance(name, str):
        raise KernelError(f"method must be a name, got {shown(name)}")
    if name not in known:
        raise KernelError(f"method must be one of {', '.join(known)}, got {shown(name)}{near(name, known)}")
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in known[name].options:
            takers = [repr(method.name) for method in known.values() if option in method.options]
            hint = "; actfit.elementwise(f, coefficients=file) takes formulas" if option == "coefficients" else ""
            raise KernelError(f"{option} must go with method={' or '.join(takers)}, got method={name!r}{hint}")
    return known[name](**given)


def near(name: str, known: Iterable[str]) -> str:
    """A hint at similar names, or ""."""
    close, low = list(known), name.lower()[:80]
    close = [low] if low in close else difflib.get_close_matches(low, close, n=2, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""
