"""The rows of `benchmarks.training`, one for each training and for each variant's gradients, and their file."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.rows import coefficients, summary
from benchmarks.training.statistics import Comparison, compare
from benchmarks.training.variants import CODED, EVERY, NETS
from coefficients import command
from coefficients.files import write_text

RUN = "training"
GRADIENTS = "gradients"
AS_TRAINED = " (tested as trained)"
# Points of test error that a net may lose, said beforehand: 1.5 of a ResNet, 0.5 of a ViT.
MARGINS = {task: 0.5 if task == "vit" else 1.5 for task in NETS}


@dataclass(frozen=True)
class Row:
    """One training of a variant, or how far its gradients are off.

    what: "training" or "gradients", and the task. implementation: the variant, or "noise". mode: "run", or the weights'
    state, "initial" or "final". found: what `training.runs.train` or `training.gradients.measure` gives.
    """

    what: str
    implementation: str
    mode: str
    seed: int
    settings: dict[str, Any]
    found: dict[str, Any]
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
        """What stands in the file: a row as all benchmarks have them, then settings and found.

        Its number is the final loss, null where a training diverged; or the layers' errors of the gradient.
        """
        values = {"median": self.found.get("loss"), "quantiles": [self.found.get("loss")] * 2, "runs": 1}
        unit = "nats"
        if self.what.startswith(GRADIENTS):
            values, unit = summary(self.found.get("error") or self.found["noise"]), "of the gradient"
        dtype = "bfloat16" if self.settings["amp"] else "float32"
        same = {name: getattr(self, name) for name in ("what", "implementation", "mode")}
        origin = {name: getattr(self, name) for name in ("device", "versions", "revision", "coefficients")}
        common = {**same, "size": {"seed": self.seed}, "dtype": dtype, "unit": unit, **values, **origin}
        return {**common, "settings": self.settings, "found": self.found}

    @classmethod
    def read(cls, line: dict[str, Any]) -> "Row":
        """The row of a line of the file. Raises KeyError or TypeError for another line."""
        return cls(
            seed=line["size"]["seed"],
            **{column.name: line[column.name] for column in fields(cls) if column.name != "seed"},
        )


def load(path: Path) -> list[Row]:
    """The rows of a file; none where it is not there. Raises Misuse for a file of something else."""
    if command.is_device(path) or not path.exists():
        return []
    try:
        return [Row.read(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (KeyError, TypeError, ValueError):
        raise command.Misuse(f"{path} must hold rows of this benchmark, and does not; give another --out") from None


def save(rows: Iterable[Row], path: Path) -> None:
    """JSON lines in a fixed order, whole or not at all."""
    order = {name: place for place, name in enumerate(("noise", *EVERY))}
    ordered = sorted(rows, key=lambda row: (row.what, row.mode, order.get(row.implementation, -1), row.seed))
    text = "".join(json.dumps(row.line(), ensure_ascii=False, allow_nan=False) + "\n" for row in ordered)
    if command.is_device(path):
        path.write_text(text, encoding="utf-8")
    else:
        write_text(path, text)


def tasks(rows: Iterable[Row]) -> list[str]:
    """The tasks of activations that were trained, in a fixed order."""
    return _trained(rows, ("text", "digits"))


def coded(rows: Iterable[Row]) -> list[str]:
    """The tasks of models of which all that is saved is in few bits, in a fixed order."""
    return _trained(rows, CODED)


def nets(rows: Iterable[Row]) -> list[str]:
    """The tasks of models whose layers save few bits, in a fixed order."""
    return _trained(rows, NETS)


def _trained(rows: Iterable[Row], names: Sequence[str]) -> list[str]:
    trained = {row.task for row in rows if row.what.startswith(RUN)}
    return [task for task in names if task in trained]


def runs(rows: Iterable[Row], task: str) -> dict[str, dict[int, Row]]:
    """The trainings of a task: of each variant, in the order of EVERY, by seed."""
    by_variant: dict[str, dict[int, Row]] = {}
    for row in rows:
        if row.what == f"{RUN} {task}":
            by_variant.setdefault(row.implementation, {})[row.seed] = row
    return {variant: dict(sorted(by_variant[variant].items())) for variant in EVERY if variant in by_variant}


def gradients(rows: Iterable[Row], task: str, state: str) -> dict[str, dict[str, Any]]:
    """The results for the gradients of a task at a state of the weights, by variant, and the noise."""
    return {row.implementation: row.found for row in rows if (row.what, row.mode) == (f"{GRADIENTS} {task}", state)}


def losses(by_seed: dict[int, Row]) -> dict[int, float | None]:
    """Final losses by seed."""
    return {seed: row.found["loss"] for seed, row in by_seed.items()}


def time_ratio(by_variant: dict[str, dict[int, Row]], variant: str) -> float:
    """The time of a variant's training over that of stock with the same seed: the median of the seeds, NaN without."""
    stock = by_variant["stock"]
    shared = [(row, stock[seed]) for seed, row in by_variant[variant].items() if seed in stock]
    ratios = [row.found["seconds"] / exact.found["seconds"] for row, exact in shared]
    return statistics.median(ratios) if ratios else math.nan


def compared(rows: Iterable[Row], task: str) -> dict[str, Comparison]:
    """Each variant but stock, compared with stock."""
    by_variant = runs(rows, task)
    return {
        variant: compare(losses(by_seed), losses(by_variant["stock"]))
        for variant, by_seed in by_variant.items()
        if variant != "stock"
    }


def errors(rows: Iterable[Row], task: str) -> dict[str, dict[int, float | None]]:
    """Test errors in % by variant and seed, None where a training diverged; naive ones also tested as trained."""
    by_variant: dict[str, dict[int, float | None]] = {}
    for variant, by_seed in runs(rows, task).items():
        by_variant[variant] = {seed: _error(row.found) for seed, row in by_seed.items()}
        if all("quantised" in row.found for row in by_seed.values()):
            by_variant[variant + AS_TRAINED] = {seed: _error(row.found["quantised"]) for seed, row in by_seed.items()}
    return by_variant


def compared_errors(rows: Iterable[Row], task: str) -> dict[str, Comparison]:
    """The test errors of each variant but stock, compared with stock's."""
    by_variant = errors(rows, task)
    return {
        variant: compare(by_variant[variant], by_variant["stock"], MARGINS[task])
        for variant in by_variant
        if variant != "stock"
    }


def _error(results: dict[str, Any]) -> float | None:
    return None if results["loss"] is None else 100 * (1 - results["accuracy"])


def mean(values: Iterable[float | None]) -> float:
    """NaN where a value is missing."""
    numbers = [math.nan if value is None else value for value in values]
    return sum(numbers) / len(numbers)
