"""What a plan consists of."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, TypeVar

from actfit.kernels.errors import shown
from actfit.kernels.memory.saved import size

T = TypeVar("T")
WITH_WHOLE_NUMBERS: dict[Any, Any] = {float: int | float, float | None: int | float | None}  # JSON has 1 for 1.0


@dataclass(frozen=True)
class PlannedSite:
    """One saved tensor.

    Attributes
    ----------
    name
        See `kernels.compression.cut.site_names`.
    bits
        Bits of its codes; None: it is saved whole.
    whole, bytes
        Its bytes as a whole tensor, and with the plan; a whole tensor of several sites counts at the first one.
    error
        ||g' - g||² / ||g||² of the gradient with these codes alone, as foreseen.
    decoded
        ||x' - x|| / ||x|| of the decoded tensor that the plan goes by; None: it is whole, or was not measured.
    """

    name: str
    bits: int | None
    whole: int
    bytes: int
    error: float
    decoded: float | None = None


@dataclass(frozen=True)
class Bytes:
    """Bytes of one step: saved for backward, and alive at the peak besides those from before; None: not known."""

    kept: int
    peak: int | None

    @property
    def peak_text(self) -> str:
        """The peak for a table."""
        return "–" if self.peak is None else size(self.peak)


@dataclass(frozen=True)
class Errors:
    """||g' - g|| / ||g|| of the gradient.

    Attributes
    ----------
    predicted
        As far as training may bring it, where tensors hardly vary yet: see `kernels.planning.decoded`.
    measured
        At the weights of now, on samples that the plan was not made with.
    smaller_batch
        The share of a batch's samples whose lack would add as much noise to the gradient, estimated from a few; None:
        not known.
    """

    predicted: float
    measured: float
    smaller_batch: float | None = None


def checked(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass from `values`. Raises ValueError if a simple field is not of its annotated type."""
    instance = kind(**values)
    for column in fields(kind):  # type: ignore[arg-type]
        annotated = WITH_WHOLE_NUMBERS.get(column.type, column.type)
        value = getattr(instance, column.name)
        if isinstance(annotated, type | UnionType) and not (
            isinstance(value, annotated) and isinstance(value, bool) == (annotated is bool)
        ):
            raise ValueError(
                f"{column.name} must be of type {getattr(column.type, '__name__', column.type)}, got {shown(value)}"
            )
    return instance
