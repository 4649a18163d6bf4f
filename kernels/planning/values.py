"""What a plan consists of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, TypeVar

from actfit.kernels.errors import shown
from actfit.kernels.memory.saved import size
from actfit.kernels.planning.sensitivity import like_site

T = TypeVar("T")
WITH_WHOLE_NUMBERS: dict[Any, Any] = {float: int | float, float | None: int | float | None}  # JSON has 1 for 1.0


@dataclass(frozen=True)
class PlannedSite:
    """One saved tensor; a whole one of several sites counts at the first one."""

    name: str  # see `kernels.compression.cut.site_names`
    bits: int | None  # of its codes; None: it is saved whole
    whole: int  # its bytes as a whole tensor
    bytes: int  # with the plan
    error: float  # ||g' - g||² / ||g||² of the gradient with these codes alone, as foreseen
    decoded: float | None = None  # ||x' - x|| / ||x|| that the plan goes by; None: it is whole, or was not measured


@dataclass(frozen=True)
class Bytes:
    """Bytes of one step: saved for backward, and alive at the peak besides those from before."""

    kept: int
    peak: int


@dataclass(frozen=True)
class Errors:
    """||g' - g|| / ||g|| of the gradient."""

    predicted: float  # as far as training may bring it, where tensors hardly vary yet: see `kernels.planning.decoded`
    measured: float  # at the weights of now, on samples that the plan was not made with
    # The share of a batch's samples whose lack would add as much noise, estimated from a few; None: not known.
    smaller_batch: float | None = None


def rows_of(sites: Sequence[PlannedSite]) -> list[str]:
    """A table of saved tensors, in which similar ones share a row."""
    groups: dict[str, list[PlannedSite]] = {}
    for site in sites:
        groups.setdefault(like_site(site.name), []).append(site)
    total = sum(site.error for site in sites) or 1.0
    rows = ["| saved tensor | number | bits | before | planned | share of the error |", "|---|---:|---|---:|---:|---:|"]
    for name, group in groups.items():
        bits = ["whole" if site.bits is None else str(site.bits) for site in group]
        if len(set(bits)) == 1:
            del bits[1:]
        whole, planned = size(sum(site.whole for site in group)), size(sum(site.bytes for site in group))
        share = sum(site.error for site in group) / total
        rows.append(f"| {name} | {len(group)} | {', '.join(bits)} | {whole} | {planned} | {share:.0%} |")
    return rows


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
