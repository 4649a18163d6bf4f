"""Nested forward AD (Guo et al.): forward computes f'(x), too, and keeps it; backward multiplies."""

from dataclasses import dataclass
from typing import ClassVar

from actfit.kernels.graph.ways.way import Way
from actfit.kernels.methods.forward_derivative import ForwardDerivative


@dataclass(frozen=True)
class Derivative(Way):
    """f'(x), in the dtype of x."""

    method: ClassVar[str] = ForwardDerivative.name
    saves: ClassVar[str] = "f'(x)"
    error: ClassVar[str] = "one rounding"

    @classmethod
    def policies(cls) -> dict[str, Way]:
        return {ForwardDerivative.name: cls()}
