"""The rows of `benchmarks.training`, one for each training and for each variant's gradients, and their file."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from actfit.coefficients import command
from benchmarks.rows import coefficients, read_lines, summary, write_whole
from benchmarks.training.statistics import Comparison, compare
from benchmarks.training.variants import CODED, EVERY

RUN = "training"
GRADIENTS = "gradients"


@dataclass(frozen=True)
class TrainingRow:
    """One training of a variant, or how far its gradients are off.

    what: "training" or "gradients", and the task. implementation: the variant, or "noise". mode: "run", or the weights'
    state, "initial" or "final". results: what `training.runs.train` or `training.gradients.measure` gives.
    """

    what: str
    implementation: str
    mode: str
    seed: int
    settings: dict[str, Any]
    results: dict[str, Any]
    device: str
    versions: dict[str, str]
    revision: str
    coefficients: str = field(default_factory=coefficients)

    @property
    def task(self) -> str:
        return str(self.settings["task"])

    @property
    def key(self) -> tuple[str, str, str, int]:
        """The key that only one row has."""
        return self.what, self.implementation, self.mode, self.seed

    def line(self) -> dict[str, Any]:
        """The JSON object of the file: a row of the common format, then settings and the results as "found".

        Its median is the final loss, null if the training diverged; or that of the layers' gradient errors.
        """
        values = {"median": self.results.get("loss"), "quantiles": [self.results.get("loss")] * 2, "runs": 1}
        unit = "nats"
        if self.what.startswith(GRADIENTS):
            values, unit = summary(self.results.get("error") or self.results["noise"]), "of the gradient"
        dtype = "bfloat16" if self.settings["amp"] else "float32"
        same = {name: getattr(self, name) for name in ("what", "implementation", "mode")}
        origin = {name: getattr(self, name) for name in ("device", "versions", "revision", "coefficients")}
        common = {**same, "size": {"seed": self.seed}, "dtype": dtype, "unit": unit, **values, **origin}
        return {**common, "settings": self.settings, "found": self.results}

    @classmethod
    def read(cls, line: dict[str, Any]) -> "TrainingRow":
        """The row of an object that `line` gave. Raises KeyError or TypeError for another object."""
        others = {column.name: line[column.name] for column in fields(cls) if column.name not in ("seed", "results")}
        return cls(seed=line["size"]["seed"], results=line["found"], **others)


def load(path: Path) -> list[TrainingRow]:
    """The rows of a file; [] if it does not exist. Raises Misuse for a file without such rows."""
    if command.is_device(path) or not path.exists():
        return []
    try:
        return [TrainingRow.read(line) for line in read_lines(path)]
    except (KeyError, TypeError, ValueError):
        raise command.Misuse(f"{path} must hold rows of this benchmark, and does not; give another --out") from None


def save(rows: Iterable[TrainingRow], path: Path) -> None:
    """JSON lines in a fixed order, whole or not at all."""
    order = {name: place for place, name in enumerate(("noise", *EVERY))}
    ordered = sorted(rows, key=lambda row: (row.what, row.mode, order.get(row.implementation, -1), row.seed))
    write_whole(path, "".join(json.dumps(row.line(), ensure_ascii=False, allow_nan=False) + "\n" for row in ordered))


def tasks(rows: Iterable[TrainingRow]) -> list[str]:
    """The trained tasks that change activations only, in a fixed order."""
    return _trained(rows, ("text", "digits"))


def coded(rows: Iterable[TrainingRow]) -> list[str]:
    """The trained tasks whose models encode every saved tensor, in a fixed order."""
    return _trained(rows, CODED)


def _trained(rows: Iterable[TrainingRow], names: Sequence[str]) -> list[str]:
    trained = {row.task for row in rows if row.what.startswith(RUN)}
    return [task for task in names if task in trained]


def runs(rows: Iterable[TrainingRow], task: str) -> dict[str, dict[int, TrainingRow]]:
    """The trainings of a task: of each variant, in the order of EVERY, by seed."""
    by_variant: dict[str, dict[int, TrainingRow]] = {}
    for row in rows:
        if row.what == f"{RUN} {task}":
            by_variant.setdefault(row.implementation, {})[row.seed] = row
    return {variant: dict(sorted(by_variant[variant].items())) for variant in EVERY if variant in by_variant}


def gradients(rows: Iterable[TrainingRow], task: str, state: str) -> dict[str, dict[str, Any]]:
    """The results for the gradients of a task at a state of the weights, by variant, and the noise."""
    return {row.implementation: row.results for row in rows if (row.what, row.mode) == (f"{GRADIENTS} {task}", state)}


def losses(by_seed: dict[int, TrainingRow]) -> dict[int, float | None]:
    """Final losses by seed."""
    return {seed: row.results["loss"] for seed, row in by_seed.items()}


def time_ratio(by_variant: dict[str, dict[int, TrainingRow]], variant: str) -> float:
    """Median over seeds of a variant's training time over stock's with the same seed; NaN without shared seeds."""
    stock = by_variant["stock"]
    shared = [(row, stock[seed]) for seed, row in by_variant[variant].items() if seed in stock]
    ratios = [row.results["seconds"] / exact.results["seconds"] for row, exact in shared]
    return statistics.median(ratios) if ratios else math.nan


def compared(rows: Iterable[TrainingRow], task: str) -> dict[str, Comparison]:
    """Each variant but stock, compared with stock."""
    by_variant = runs(rows, task)
    return {
        variant: compare(losses(by_seed), losses(by_variant["stock"]))
        for variant, by_seed in by_variant.items()
        if variant != "stock"
    }


def mean(values: Iterable[float | None]) -> float:
    """The mean; NaN if a value is missing."""
    numbers = [math.nan if value is None else value for value in values]
    return sum(numbers) / len(numbers)
