"""The Pareto front: bytes of a step against the error of its gradient, with alternatives for comparison."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from actfit.coefficients.pictures import SALT, undated
from actfit.kernels.errors import KernelError, shown
from actfit.kernels.memory.saved import UNITS, picture, size
from actfit.kernels.memory.step import Loss
from actfit.kernels.methods.planned import WIDTHS
from actfit.kernels.planning.batches import call_of
from actfit.kernels.planning.budget import Limits
from actfit.kernels.planning.make import reported, task_of
from actfit.kernels.planning.plan import Plan
from actfit.kernels.planning.sensitivity import Bits, SiteErrors
from actfit.kernels.planning.solve import error_of, solve
from actfit.kernels.planning.step import Step
from actfit.kernels.planning.task import PASSES, SAMPLES, StandIn, Task
from actfit.kernels.planning.training import Optimizer
from actfit.kernels.planning.values import Bytes

By = Literal["kept", "peak"]
COUNT = 12  # budgets that are solved for
UNIFORM = (8, 4, 2)  # bits of the named points
NAMES = {"kept": "kept for backward", "peak": "at the peak of a step"}


@dataclass(frozen=True)
class Point:
    """One way to train."""

    name: str  # of an alternative; "" for a solution
    bytes: Bytes  # of a step
    error: float  # ||g' - g|| / ||g|| of the gradient, predicted
    work: float | None = None  # as of a plan


@dataclass(frozen=True)
class Front:
    """Solutions for several budgets, and named alternatives. `str(front)` is a table.

    Attributes
    ----------
    model
        Name of the class.
    by
        Which bytes were limited: "kept" for backward, or at the "peak".
    points
        Solutions with codes only, by bytes.
    named
        The model as it is, all repeated blocks computed again, the same bits everywhere, and the plan.
    measured_on
        As in a plan.
    """

    model: str
    by: By
    points: tuple[Point, ...]
    named: tuple[Point, ...]
    measured_on: str = ""

    def __str__(self) -> str:
        lines = [f"| {self.model} | kept | peak | error of the gradient | products |", "|---|---:|---:|---:|---:|"]
        lines += [
            f"| {point.name or 'solved'} | {size(point.bytes.kept)} | {size(point.bytes.peak)} | {point.error:.2%}"
            f" | {'–' if point.work is None else f'{point.work:.2f} ×'} |"
            for point in (*self.named, *self.points)
        ]
        return "\n".join(lines)

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw it into a file in the format of its ending.

        It is written whole or not at all, and without a date. Raises KernelError for an ending that is not one of a
        picture, and OSError where it cannot be written.
        """
        picture(path)
        from matplotlib import rc_context

        with undated(Path(path)) as (partial, metadata), rc_context(SALT):
            self.figure().savefig(partial, metadata=metadata)

    def figure(self) -> Any:
        """The picture, as a `Figure` of matplotlib."""
        figure = picture("front.svg")(figsize=(7, 4.5), layout="constrained")
        axes = figure.add_subplot()
        every = (*self.points, *self.named)
        power = max(0, min(int(np.log2(max(map(self._bytes, every), default=1) or 1) // 10), len(UNITS) - 1))

        def places(points: tuple[Point, ...]) -> tuple[list[float], list[float]]:
            return [self._bytes(point) / 1024**power for point in points], [point.error for point in points]

        axes.plot(*places(self.points), ".-", color="0.5", label="solved: codes alone")
        for number, point in enumerate(self.named):
            marker, work = "*" if point.name == "plan" else "o", point.work
            label = point.name if work is None else f"{point.name}, {work:.2f} × the products"
            axes.plot(*places((point,)), marker, color=f"C{number}", label=label)
        least = min((point.error for point in every if point.error > 0), default=1e-3)
        axes.set_yscale("symlog", linthresh=least / 2, linscale=0.3)
        axes.set_ylim(bottom=-least / 8)
        axes.set_xlim(left=0)
        axes.set_xlabel(f"{UNITS[power]} {NAMES[self.by]}")
        axes.set_ylabel("‖g' − g‖ / ‖g‖, predicted")
        axes.set_title(self.model + f" (errors of {self.measured_on})" * bool(self.measured_on), fontsize="medium")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        return figure

    def _bytes(self, point: Point) -> int:
        return point.bytes.kept if self.by == "kept" else point.bytes.peak


def front(
    model: nn.Module,
    inputs: Any,
    *,
    plan: Plan | None = None,
    by: By = "kept",
    count: int = COUNT,
    loss: Loss | None = None,
    targets: Any = None,
    rounding: str = "nearest",
    samples: int = SAMPLES,
    passes: int = PASSES,
    stand_in: StandIn | None = None,
    compiled: bool = False,
    optimizer: Optimizer | None = None,
    accumulates: bool = False,
    progress: Callable[[str], object] | None = None,
) -> Front:
    """What each budget costs in error.

    Parameters
    ----------
    model, inputs, loss, targets, rounding, samples, passes, stand_in, compiled, optimizer, accumulates, progress
        As for `make_plan`.
    plan
        A plan of this model, to be among the named points.
    by
        Which bytes are limited: "kept" for backward, or at the "peak" of a step.
    count
        How many budgets, from the smallest that codes alone can keep to the bytes that the model takes now.

    Raises
    ------
    KernelError
        As `make_plan` does; for a count below 2; and for other `by`.
    """
    given = model, call_of(inputs), loss, targets, rounding, samples, passes, stand_in
    with reported(progress) as doing:
        return front_of(task_of(*given, doing, compiled, optimizer, accumulates), plan, by, count)


def front_of(task: Task, plan: Plan | None = None, by: By = "kept", count: int = COUNT) -> Front:
    """As `front`, for a task."""
    if by not in NAMES:
        raise KernelError(f"by must be one of {', '.join(NAMES)}, got {shown(by)}")
    if not isinstance(count, int) or isinstance(count, bool) or count < 2:
        raise KernelError(f"count must be a whole number of 2 or more, got {shown(count)}")
    if plan is not None and not isinstance(plan, Plan):
        raise KernelError(f"plan must be a plan, as make_plan gives, or None, got {shown(plan)}")
    step, blocks = task.step(), task.blocks
    errors = task.errors((), step) if step.sites else {}
    named = [Point("stock", task.stock, 0.0, task.work(task.without_codes(())[1]))]
    if blocks:
        task.progress("a step with all blocks computed again")
        again, operations = task.without_codes(blocks)
        named.append(Point("checkpoint", again, 0.0, task.work(operations)))
    work = task.work(step.operations)
    named += [_point(step, errors, step.everywhere(bits), work, f"{bits} bits") for bits in UNIFORM if step.sites]
    if plan is not None and plan.needed:
        named.append(Point("plan", plan.planned, plan.errors.predicted, plan.work))
    return Front(
        type(task.model).__name__,
        by,
        tuple(_solutions(task, step, errors, by, count) if step.sites else ()),
        tuple(named),
        task.measured_on,
    )


def _solutions(task: Task, step: Step, errors: SiteErrors, by: By, count: int) -> Iterator[Point]:
    """The solutions for limits in a geometric sequence, from the narrowest codes to whole tensors."""
    bytes_with = step.kept_with if by == "kept" else step.peak_with
    smallest, largest = bytes_with(WIDTHS[0]), bytes_with(None)
    for number, limit in enumerate(np.geomspace(smallest, largest, count)):
        task.progress(f"solving for budget {number + 1} of {count}")
        most = int(np.ceil(limit)) if number else smallest
        bits = solve(step, errors, Limits(kept=most) if by == "kept" else Limits(peak=most)).bits
        yield _point(step, errors, bits, task.work(step.operations))


def _point(step: Step, errors: SiteErrors, bits: Bits, work: float | None, name: str = "") -> Point:
    return Point(name, Bytes(step.kept_with(bits), step.peak_with(bits)), error_of(errors, bits) ** 0.5, work)
