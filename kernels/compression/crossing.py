"""What forward leaves to backward: values that a report is made of."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Crossing:
    """A tensor that forward leaves to backward.

    Attributes
    ----------
    module
        Whose it is, by name in the model; "" for the model itself.
    operation
        That gave it, as "aten.addmm".
    shape
        With the sizes that the compiler saw first, where they change.
    dtype
        As "bfloat16".
    form
        What crosses in its stead: "4 bits", "1 bit", "whole"; or "computed again", where nothing does.
    reason
        Why it is whole, or "".
    before, after
        Bytes.
    error
        Expected of the decoded tensor, in the root mean square, relative: of normally distributed values. 0 if exact.
    site
        By what name a plan chooses its bits, see `kernels.compression.cut.Cut`; "" if none does.
    """

    module: str
    operation: str
    shape: tuple[int, ...]
    dtype: str
    form: str
    reason: str
    before: int
    after: int
    error: float
    site: str = ""


@dataclass(frozen=True)
class Graph:
    """All that crosses in one compiled graph."""

    crossings: tuple[Crossing, ...]

    @property
    def before(self) -> int:
        """Bytes that would cross without codes."""
        return sum(crossing.before for crossing in self.crossings)

    @property
    def after(self) -> int:
        """Bytes that cross."""
        return sum(crossing.after for crossing in self.crossings)
