"""A plan: how many bits each saved tensor of a model gets, its bytes and errors; and its JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar

from torch import nn

from coefficients.files import write_text
from kernels.errors import KernelError, shown
from kernels.memory.saved import size
from kernels.methods.compressed import ROUNDINGS
from kernels.methods.planned import WIDTHS, Planned
from kernels.planning.goals import GOALS
from kernels.planning.plan_table import table_of

FORMAT = "actfit plan"
VERSION = 1
T = TypeVar("T")


@dataclass(frozen=True)
class PlannedSite:
    """One saved tensor.

    Attributes
    ----------
    name
        See `kernels.eager.sites`.
    bits
        Bits of its codes; None: it is saved whole.
    whole, bytes
        Its bytes as a whole tensor, and with the plan.
    error
        ||g' - g||² / ||g||² of the gradient with these codes alone.
    time
        Seconds that its codes take, × those of a step of the unchanged model; None: not measured.
    """

    name: str
    bits: int | None
    whole: int
    bytes: int
    error: float
    time: float | None = None


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
    """||g' - g|| / ||g|| of the gradient, predicted, and measured on samples that the plan was not made with."""

    predicted: float
    measured: float


@dataclass(frozen=True)
class Plan:
    """What `convert(model, plan=...)` does. `str(plan)` is a table.

    Attributes
    ----------
    model
        Name of the class.
    budget
        The budget as it was given.
    rounding
        Rounding of all codes.
    recomputed
        Names of blocks that backward computes again.
    sites
        In the order in which they are saved.
    stock, planned
        Bytes of the unchanged model, and with the plan.
    errors
        Errors of the plan.
    uniform, uniform_error
        The widest codes that fit the budget if all tensors get the same; their measured error.
    gap
        How far the smallest squared error may be below the predicted one, as a share of it; with the goal "time", the
        fewest elements in codes below those of the plan.
    measured_on
        The model that errors were measured on: "" for the model itself, or a description.
    compiled
        Whether it is for `torch.compile`, by `compression.options(plan=...)`.
    work
        Floating-point operations of products in a step, × those of the unchanged model: blocks and attention that are
        computed again add to them. None: not known, as of a compiled model, or there are none.
    goal
        What is least: the "error", or the elements in codes for "time".
    time
        Seconds of a step of samples, × those of the unchanged model; None: not measured.
    """

    model: str
    budget: str
    rounding: str
    recomputed: tuple[str, ...]
    sites: tuple[PlannedSite, ...]
    stock: Bytes
    planned: Bytes
    errors: Errors
    uniform: int
    uniform_error: float
    gap: float
    measured_on: str = ""
    compiled: bool = False
    work: float | None = None
    goal: str = "error"
    time: float | None = None

    @property
    def needed(self) -> bool:
        """Whether the budget needs any change of the model."""
        return bool(self.sites or self.recomputed)

    @property
    def method(self) -> Planned:
        """The method that codes the model's tensors. Sites that the plan does not have get its widest codes."""
        bits = {site.name: site.bits for site in self.sites}
        known = [width for width in bits.values() if width is not None]
        return Planned(max(known, default=WIDTHS[-1]), self.rounding, bits)

    def check_model(self, model: nn.Module) -> None:
        """Raise KernelError for a model without the modules of the plan, and for a plan for `torch.compile`."""
        if self.compiled:
            raise KernelError(
                "plan must be for eager mode, got one of a compiled model, in which other tensors are saved; give it to"
                " torch.compile(model, options=compression.options(plan=...))"
            )
        names = {name for name, _ in model.named_modules()}
        for module in (*self.recomputed, *(site.name.partition(": ")[0] for site in self.sites)):
            if module not in names:
                raise KernelError(
                    f"plan must be of this model, got one of a {self.model} with {module!r}, which"
                    f" {type(model).__name__} has not; plan anew by convert(model, inputs=..., budget=...)"
                )

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as JSON, for `Plan.load` and `convert(model, plan=path)`."""
        write_text(Path(path), json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1) + "\n")

    @staticmethod
    def load(path: str | PathLike[str]) -> "Plan":
        """A plan that was saved.

        Raises
        ------
        KernelError
            For a file that cannot be read, or is no plan.
        """
        try:
            return _plan(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise KernelError(f"plan must be a file that can be read, got {path}: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise KernelError(f"plan must be a file that Plan.save wrote, got {path}: {_line(error)}") from error

    def __str__(self) -> str:
        return table_of(self)


def _plan(document: Mapping[str, Any]) -> Plan:
    values = dict(document)
    header = values.pop("format", None), values.pop("version", None)
    if header != (FORMAT, VERSION):
        raise ValueError(f"format and version must be {(FORMAT, VERSION)}, got {header}")
    values |= {"recomputed": tuple(values["recomputed"]), "errors": _checked(Errors, values["errors"])}
    values |= {name: _checked(Bytes, values[name]) for name in ("stock", "planned")}
    values |= {"sites": tuple(_checked(PlannedSite, site) for site in values["sites"])}
    plan = _checked(Plan, values)
    for site in plan.sites:
        if site.bits is not None and site.bits not in WIDTHS:
            raise ValueError(f"bits must be {WIDTHS[0]} to {WIDTHS[-1]} or null, got {shown(site.bits)}")
        if ": " not in site.name:
            raise ValueError(f'a name must be "module: function", got {shown(site.name)}')
    if not all(isinstance(block, str) for block in plan.recomputed):
        raise ValueError(f"recomputed must be names of modules, got {shown(plan.recomputed)}")
    if plan.compiled and plan.recomputed:
        raise ValueError(f"recomputed must be empty in a plan of a compiled model, got {shown(plan.recomputed)}")
    if plan.goal not in GOALS:
        raise ValueError(f"goal must be one of {', '.join(GOALS)}, got {shown(plan.goal)}")
    if plan.rounding not in ROUNDINGS:
        raise ValueError(f"rounding must be one of {', '.join(ROUNDINGS)}, got {shown(plan.rounding)}")
    return plan


def _checked(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass from `values`. Raises ValueError if a simple field is not of its annotated type."""
    instance = kind(**values)
    for column in fields(kind):  # type: ignore[arg-type]
        annotated: Any = int | float if column.type is float else column.type
        value = getattr(instance, column.name)
        if isinstance(annotated, type | UnionType) and not (
            isinstance(value, annotated) and isinstance(value, bool) == (annotated is bool)
        ):
            raise ValueError(
                f"{column.name} must be of type {getattr(column.type, '__name__', annotated)}, got {shown(value)}"
            )
    return instance


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
