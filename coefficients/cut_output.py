"""The stored output at which a second bit beside y tells something else than which way y was rounded."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class CutOutput(NamedTuple):
    """One stored output whose interval is not cut at itself. All are numbers of float32."""

    output: float  # the stored output
    border: float  # the second bit of an x that is stored so tells whether |f(x)| < |border|
    # inner, outer: what backward takes instead of y where that holds, and where it does not
    inner: float
    outer: float

    @classmethod
    def of(cls, solution: Mapping[str, Any]) -> "CutOutput | None":
        """That of the solution of a document of method invact; None where it has none."""
        return cls(**solution["cut"]) if "cut" in solution else None
