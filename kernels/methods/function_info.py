"""Properties of a function of the catalogue: computed by codegen, stored in `actfit.kernels.generated.functions`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from actfit.coefficients.cut_output import CutOutput


@dataclass(frozen=True, eq=False)
class FunctionInfo:
    """One function; there is one object for each."""

    name: str
    parameters: Mapping[str, float]  # names and defaults, in the order in which kernels take them
    lower_limits: Mapping[str, float]  # of parameters: below them the output does not determine f'
    # What is compared with parameters that are rounded to its dtype: "x", by kernels of all methods, as PyTorch's own
    # function does it; "y", which is cut off at them, by kernels that take f' from it; or "".
    rounded_for: str
    rounds_once: bool  # whether forward in PyTorch rounds its result only, in each dtype
    branches: int  # monotone pieces of f that y alone cannot tell apart: 1 or 2
    minimum: float | None  # of f; None: it has no lower bound
    bounded_derivative: bool  # whether f' is, by default parameters; if not, no few-bit table serves every x
    tables: Mapping[int, int]  # few-bit tables: bits stored, by the bits that were asked for
    elements: frozenset[str]  # names of the functions in `actfit.kernels.generated.<name>_triton`
    # For invact with two bits, by dtype: the output where the second bit does not tell how y was rounded.
    cuts: Mapping[str, CutOutput] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether there is such an element function, for some dtype."""
        return any(element == name or element.startswith(f"{name}_") for element in self.elements)

    def element(self, name: str, dtype: str) -> str:
        """The name of an element function for a dtype: dtypes that need the same code share one."""
        names = (f"{name}_{dtype}", f"{name}_16bit", name)
        return next(candidate for candidate in names if candidate in self.elements)
