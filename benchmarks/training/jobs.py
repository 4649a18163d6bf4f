"""The work of `benchmarks.training`: settings by size, jobs, and the rows of other settings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from joblib import Parallel, delayed

from benchmarks.clock import origin
from benchmarks.training import gradients as training_gradients
from benchmarks.training import runs as training_runs
from benchmarks.training.data import digest
from benchmarks.training.gradients import NOISE, STATES
from benchmarks.training.rows import GRADIENTS, RUN, TrainingRow
from benchmarks.training.runs import Settings
from benchmarks.training.variants import SMALL_VIT, STOCK

TASKS = {  # and their activations
    **{"text": "gelu", "digits": "silu"},
    **{"gpt": "gelu", "llama": "silu", "resnet": "silu", SMALL_VIT: "gelu"},
}


def _coded(width: int, layers: int, context: int, batch: int, steps: int, rate: float) -> dict[str, dict[str, Any]]:
    common = {"context": context, "batch": batch, "steps": steps, "rate": rate}
    return {name: {"width": width, "layers": layers, **common} for name in ("gpt", "llama")}


SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "quick": {
        "text": {"width": 16, "layers": 1, "context": 16, "batch": 4, "steps": 4, "rate": 3e-3},
        "digits": {"width": 4, "layers": 1, "context": 0, "batch": 16, "steps": 4, "rate": 0.1},
        **_coded(width=16, layers=1, context=16, batch=16, steps=4, rate=3e-3),
        "resnet": {"width": 4, "layers": 1, "context": 0, "batch": 64, "steps": 4, "rate": 0.1},
        SMALL_VIT: {"width": 16, "layers": 1, "context": 0, "batch": 64, "steps": 4, "rate": 1e-3},
    },
    "small": {
        "text": {"width": 64, "layers": 2, "context": 64, "batch": 16, "steps": 600, "rate": 3e-3},
        "digits": {"width": 16, "layers": 1, "context": 0, "batch": 64, "steps": 400, "rate": 0.1},
        **_coded(width=64, layers=2, context=64, batch=16, steps=400, rate=3e-3),
        "resnet": {"width": 16, "layers": 1, "context": 0, "batch": 64, "steps": 300, "rate": 0.1},
        SMALL_VIT: {"width": 64, "layers": 2, "context": 0, "batch": 64, "steps": 400, "rate": 1e-3},
    },
    "large": {
        "text": {"width": 384, "layers": 6, "context": 256, "batch": 64, "steps": 1000, "rate": 1e-3},
        "digits": {"width": 64, "layers": 3, "context": 0, "batch": 128, "steps": 2000, "rate": 0.1},
        **_coded(width=384, layers=6, context=256, batch=64, steps=1000, rate=1e-3),
        "resnet": {"width": 64, "layers": 3, "context": 0, "batch": 128, "steps": 2000, "rate": 0.1},
        SMALL_VIT: {"width": 128, "layers": 6, "context": 0, "batch": 128, "steps": 2000, "rate": 1e-3},
    },
}
# Digits get more seeds: their final loss varies by a sixth between seeds, and they are quick (tried on 100 to 102).
SEEDS = {"text": 5, "digits": 10, "gpt": 5, "llama": 5, "resnet": 5, SMALL_VIT: 5}


@dataclass(frozen=True)
class Job:
    """One training of a variant, or the gradients of several."""

    what: str
    variants: tuple[str, ...]
    seed: int
    settings: Settings

    @property
    def keys(self) -> set[tuple[str, str, str, int]]:
        """The keys of the job's rows."""
        what = f"{self.what} {self.settings.task}"
        if self.what == RUN:
            return {(what, self.variants[0], "run", self.seed)}
        others = [NOISE, *(variant for variant in self.variants if variant != STOCK)]
        return {(what, variant, state, self.seed) for variant in others for state in STATES}


def settings(task: str, size: str, device: str, threads: int, amp: bool, **changed: Any) -> Settings:
    """The settings of a task in a size. changed: settings to replace; None leaves one as it is."""
    known = {"activation": TASKS[task], **SIZES[size][task]}
    known |= {name: value for name, value in changed.items() if value is not None}
    digest_of = digest(training_runs.load(task, known["context"], device))
    common = {"size": size, "device": device, "threads": threads, "amp": amp, "torch": torch.__version__}
    return Settings(task=task, digest=digest_of, **common, **known)


def jobs(of_tasks: Sequence[Settings], variants: Mapping[str, Sequence[str]], seeds: Mapping[str, int]) -> list[Job]:
    """All jobs; each seed runs all variants before the next, so that an interrupted run can be compared."""
    made = []
    for task_settings in of_tasks:
        names = variants[task_settings.task]
        made.append(Job(GRADIENTS, tuple(names), 0, task_settings))
        made += [
            Job(RUN, (variant,), seed, task_settings) for seed in range(seeds[task_settings.task]) for variant in names
        ]
    return made


def do(job: Job) -> list[TrainingRow]:
    """The rows of a job."""
    task = job.settings.task
    common: dict[str, Any] = {"seed": job.seed, "settings": asdict(job.settings)}
    with training_runs.conditions(job.settings):
        common |= origin(torch.device(job.settings.device))
    if job.what == RUN:
        (variant,) = job.variants
        results = training_runs.train(job.settings, variant, job.seed)[1]
        return [TrainingRow(f"{RUN} {task}", variant, "run", results=results, **common)]
    measured = training_gradients.measure(job.settings, job.variants, job.seed)
    return [
        TrainingRow(f"{GRADIENTS} {task}", variant, state, results=results, **common)
        for state, variant, results in measured
    ]


def done(todo: Sequence[Job], processes: int) -> Iterator[list[TrainingRow]]:
    """Yield the rows of each job when it finishes."""
    yield from Parallel(n_jobs=processes, return_as="generator_unordered", batch_size=1)(
        delayed(do)(job) for job in todo
    )


def others(rows: Sequence[TrainingRow], of_tasks: Sequence[Settings]) -> list[TrainingRow]:
    """The rows of these tasks with other settings; they must not be mixed with new rows."""
    keys = {task_settings.task: asdict(task_settings) for task_settings in of_tasks}
    return [row for row in rows if row.task in keys and row.settings != keys[row.task]]
