"""A plan: how many bits each saved tensor of a model gets, its bytes and errors; and its JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from actfit.coefficients.files import write_text
from actfit.kernels.errors import KernelError, shown
from actfit.kernels.memory.making import line
from actfit.kernels.memory.saved import size
from actfit.kernels.methods.every_tensor import ROUNDINGS
from actfit.kernels.methods.planned import WIDTHS, Planned
from actfit.kernels.planning.blocks import repeated_modules
from actfit.kernels.planning.budget import GOALS
from actfit.kernels.planning.values import Bytes, Errors, PlannedSite, checked, rows_of

FORMAT = "actfit plan"
VERSION = 1


@dataclass(frozen=True)
class Plan:
    """What `compress(model, plan=...)` does. `str(plan)` is a table.

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
        Whether it is for blocks that Inductor compiles.
    work
        Floating-point operations of products in a step, × those of the unchanged model: blocks and attention that are
        computed again add to them. None: there are none.
    goal
        What is least: the "error", or the elements in codes for "time".
    reason
        Why nothing is planned although the budget needs it; or "".
    modules
        How many modules the model has of each name that ends with a number, as {"layers.*": 4}; not known of old files.
    unchanged
        Names of blocks that run as stock.
    time
        Seconds of a step that are predicted, × those of the unchanged model; None: not known.
    optimizer
        The class of the optimizer with which peaks are those of a whole training; "": over what is there before a step.
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
    reason: str = ""
    modules: Mapping[str, int] = field(default_factory=dict, hash=False)
    unchanged: tuple[str, ...] = ()
    time: float | None = None
    optimizer: str = ""

    @property
    def needed(self) -> bool:
        """Whether the plan changes the model."""
        return self.planned != self.stock

    @property
    def method(self) -> Planned:
        """The method that codes the model's tensors. Sites that the plan does not have get its widest codes."""
        bits = {site.name: site.bits for site in self.sites}
        known = [width for width in bits.values() if width is not None]
        return Planned(max(known, default=WIDTHS[-1]), self.rounding, bits)

    @property
    def decoded(self) -> dict[str, float]:
        """The relative error of each decoded tensor that the plan goes by, by site, as far as it was measured."""
        return {site.name: site.decoded for site in self.sites if site.decoded is not None}

    @property
    def summary(self) -> list[str]:
        """Lines that say what it does to a step."""
        peak = f"peak of {self._step} {size(self.stock.peak)} before, {size(self.planned.peak)} planned"
        on = f" (measured on {self.measured_on})" if self.measured_on else ""
        on_gpu = " by what an H100 takes" if self.measured_on else ""
        uniform = f"; with {self.uniform} bits everywhere {self.uniform_error:.2%}{on}"
        smaller = self.errors.smaller_batch
        noise = "" if smaller is None else f" (as if the batch were about {100 * smaller:.1g}% smaller)"
        error = f"{self.errors.measured:.2%} measured{noise}, {self.errors.predicted:.2%} predicted{uniform}"
        return [
            f"{self.model}, budget {self.budget}: kept for backward {size(self.stock.kept)} before,"
            f" {size(self.planned.kept)} planned; {peak}",
            f"error of the gradient: {error if self.uniform else '0, as nothing is quantized'}",
            *([f"computed again in backward: {_blocks(self.recomputed)}"] if self.recomputed else []),
            *([f"as they are: {_blocks(self.unchanged)}"] if self.unchanged else []),
            *([f"time of a step: {self.time:.2f} × as long, predicted{on_gpu}"] if self.time else []),
            *([f"products of matrices, convolutions and attention: {self.work:.2f} × as many"] if self.work else []),
        ]

    @property
    def _step(self) -> str:
        """What peaks are of."""
        return f"training with {self.optimizer}" if self.optimizer else "a step"

    def check_model(self, model: nn.Module) -> None:
        """Raise KernelError for a model with other modules than the plan's."""
        names = {name for name, _ in model.named_modules(remove_duplicate=False)}  # graphs have any of them
        for module in (*self.recomputed, *self.unchanged, *(site.name.partition(": ")[0] for site in self.sites)):
            if module not in names:
                raise KernelError(
                    f"plan must be of this model, got one of a {self.model} with {module!r}, which"
                    f" {type(model).__name__} has not; plan anew by compress(model, fit=..., inputs=...)"
                )
        for module in (*self.recomputed, *self.unchanged):
            if next(model.get_submodule(module).children(), None) is None:
                raise KernelError(
                    f"plan must be of this model, got one of a {self.model} with a block {module!r}, which is a single"
                    f" layer of {type(model).__name__}; plan anew by compress(model, fit=..., inputs=...)"
                )
        for kind, alike in repeated_modules(model).items():
            known = self.modules.get(kind, len(alike))
            if len(alike) > known:
                raise KernelError(
                    f"plan must be of this model, got one of a model with {known} modules {kind!r}, where"
                    f" {type(model).__name__} has {len(alike)}: it has nothing for {alike[-1]!r}, for one; make one of"
                    " this model by make_plan"
                )

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as JSON, for `Plan.load` and `compress(model, plan=path)`."""
        write_text(Path(path), self.to_json())

    def to_json(self) -> str:
        """The text of its file, for `Plan.from_json`."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1) + "\n"

    @staticmethod
    def load(path: str | PathLike[str]) -> "Plan":
        """A plan that was saved; raises KernelError for a file that cannot be read, or is no plan."""
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise KernelError(f"plan must be a file that can be read, got {path}: {error.strerror}") from error
        return Plan.from_json(text, str(path))

    @staticmethod
    def from_json(text: str | bytes, source: str = "text") -> "Plan":
        """A plan from what `to_json` gave; raises KernelError, which names the source, for any other text."""
        try:
            return _plan(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise KernelError(f"plan must be a file that Plan.save wrote, got {source}: {line(error)}") from error

    def __str__(self) -> str:
        if self.needed:
            table = ["", *rows_of(self.sites)] if self.sites else []
            return "\n".join([*self.summary, *table, *([_gap(self)] if self.gap else [])])
        if self.reason:
            return f"{self.model} is left as it is: {self.reason}"
        return (
            f"{self.model} needs no plan for a budget of {self.budget}: it keeps {size(self.stock.kept)} for backward,"
            f" and the peak of {self._step} is {size(self.stock.peak)}"
        )


def _plan(document: Mapping[str, Any]) -> Plan:
    values = dict(document)
    header = values.pop("format", None), values.pop("version", None)
    if header != (FORMAT, VERSION):
        raise ValueError(f"format and version must be {(FORMAT, VERSION)}, got {header}")
    for name in ("recomputed", "unchanged"):
        blocks = values.get(name, [])
        if not isinstance(blocks, list) or not all(isinstance(block, str) for block in blocks):
            raise ValueError(f"{name} must be a list of names of modules, got {shown(blocks)}")
        values[name] = tuple(blocks)
    values |= {"errors": checked(Errors, values["errors"])}
    values |= {name: checked(Bytes, values[name]) for name in ("stock", "planned")}
    values |= {"sites": tuple(checked(PlannedSite, site) for site in values["sites"])}
    plan = checked(Plan, values)
    for site in plan.sites:
        if site.bits is not None and site.bits not in WIDTHS:
            raise ValueError(f"bits must be {WIDTHS[0]} to {WIDTHS[-1]} or null, got {shown(site.bits)}")
        if ": " not in site.name:
            raise ValueError(f'a name must be "module: function", got {shown(site.name)}')
    if not isinstance(plan.modules, dict) or not all(type(count) is int for count in plan.modules.values()):
        raise ValueError(f"modules must be numbers by name, got {shown(plan.modules)}")
    for name, word, known in (("goal", plan.goal, GOALS), ("rounding", plan.rounding, ROUNDINGS)):
        if word not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {shown(word)}")
    return plan


def _gap(plan: Plan) -> str:
    if plan.gap >= 1:
        return "The search ran out of time: how far this is from the least is not known."
    if plan.goal == "time":
        return f"Up to {1 / (1 - plan.gap) - 1:.1%} more elements may be in codes than need be."
    return f"The predicted error may be up to {1 / (1 - plan.gap) ** 0.5 - 1:.1%} above the least there is."


def _blocks(names: tuple[str, ...]) -> str:
    if len(names) <= 3:
        return f"block{'s' * (len(names) > 1)} {', '.join(names)}"
    return f"{len(names)} blocks, {names[0]} to {names[-1]}"
