"""The rows of `benchmarks.training`, one for each training and for each arm's gradients, and the file they are in."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.rows import coefficients, summary
from benchmarks.training.arms import EVERY, NETS
from benchmarks.training.statistics import Comparison, compare
from coefficients import command
from coefficients.files import write_text

RUN = "training"
GRADIENTS = "gradients"
AS_TRAINED = " (tested as trained)"
# Points of test error that a net may lose, said beforehand: 1.5 of a ResNet, 0.5 of a ViT.
MARGINS = {task: 0.5 if task == "vit" else 1.5 for task in NETS}


@dataclass(frozen=True)
class Row:
    """One training of an arm, or how far its gradients are off.

    what: "training" or "gradients", and the task. implementation: the arm, or "noise". mode: "run", or the weights'
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
        """What there is one row of."""
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
        """The row of such a line. Raises KeyError or TypeError for one of something else."""
        return cls(seed=line["size"]["seed"], **{one.name: line[one.name] for one in fields(cls) if one.name != "seed"})


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


def nets(rows: Iterable[Row]) -> list[str]:
    """Those of the models whose layers keep few bits, likewise."""
    return _trained(rows, NETS)


def _trained(rows: Iterable[Row], names: Sequence[str]) -> list[str]:
    there = {row.task for row in rows if row.what.startswith(RUN)}
    return [task for task in names if task in there]


def runs(rows: Iterable[Row], task: str) -> dict[str, dict[int, Row]]:
    """The trainings of a task: of each arm, in the order of EVERY, by seed."""
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        if row.what == f"{RUN} {task}":
            found.setdefault(row.implementation, {})[row.seed] = row
    return {arm: dict(sorted(found[arm].items())) for arm in EVERY if arm in found}


def gradients(rows: Iterable[Row], task: str, state: str) -> dict[str, dict[str, Any]]:
    """What was found of the gradients of a task at a state of the weights, of each arm and of the noise."""
    return {row.implementation: row.found for row in rows if (row.what, row.mode) == (f"{GRADIENTS} {task}", state)}


def losses(by_seed: dict[int, Row]) -> dict[int, float | None]:
    """Final losses by seed."""
    return {seed: row.found["loss"] for seed, row in by_seed.items()}


def compared(rows: Iterable[Row], task: str) -> dict[str, Comparison]:
    """Each arm but stock with stock."""
    by_arm = runs(rows, task)
    return {arm: compare(losses(by_seed), losses(by_arm["stock"])) for arm, by_seed in by_arm.items() if arm != "stock"}


def errors(rows: Iterable[Row], task: str) -> dict[str, dict[int, float | None]]:
    """Test errors in % by arm and seed, None where a training diverged; of a naive arm besides: tested as trained."""
    found: dict[str, dict[int, float | None]] = {}
    for arm, by_seed in runs(rows, task).items():
        found[arm] = {seed: _error(row.found) for seed, row in by_seed.items()}
        if all("quantised" in row.found for row in by_seed.values()):
            found[arm + AS_TRAINED] = {seed: _error(row.found["quantised"]) for seed, row in by_seed.items()}
    return found


def compared_errors(rows: Iterable[Row], task: str) -> dict[str, Comparison]:
    """The test errors of each arm but stock, with stock's."""
    found = errors(rows, task)
    return {arm: compare(found[arm], found["stock"], MARGINS[task]) for arm in found if arm != "stock"}


def _error(found: dict[str, Any]) -> float | None:
    return None if found["loss"] is None else 100 * (1 - found["accuracy"])


def mean(values: Iterable[float | None]) -> float:
    """NaN where a value is missing."""
    numbers = [math.nan if value is None else value for value in values]
    return sum(numbers) / len(numbers)
