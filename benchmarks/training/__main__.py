"""python -m benchmarks.training: does training change if activations save less for backward?

Tasks are trained by each variant with the same seeds, that is, the same first weights and the same batches: `text`, a
small GPT with GELU on the text of Python's help, and `digits`, a small ResNet with SiLU on scikit-learn's digits. The
variants differ in what activations keep for backward: stock; the methods of `actfit.nn`; actnn, the input in few bits,
which is the FewBit paper's baseline; recompute, PyTorch's checkpointing of each block. Each variant's final loss on
what was held out is then compared with stock's, in pairs, with a test of equivalence whose margin is the standard
deviation of stock's final loss between seeds. Besides: bytes kept, seconds (on a CPU those of the kernels'
plain-PyTorch reference), and how far gradients are from stock's, beside the noise of the batches.

Of four more, `gpt` and `llama` on the text, `resnet` and `small-vit` on the digits, all that autograd saves is in few
bits: by `actfit.compress` (compress-b, stochastic-b), compiled with `actfit.options` (coded-b), compressed or
compiled by a plan for an n-th of the bytes (plan-n, compiled-plan-n), or by hooks (hook-b); beside stock, compiled,
checkpointed and compressed exactly. The peak of a step is measured, too.

Rows, as JSON lines, in benchmarks/results/<device>/training.jsonl, pictures beside them; written after each training,
so that one that is broken off is taken up again where it was. --quick writes to --out only. Rows are taken up from
other revisions too: after a change of the kernels, --fresh measures again.
"""

from actfit.coefficients import command
from benchmarks import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("training", lambda: parsers.training(__doc__).parse_args())

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler would write two lines a training

import torch
from tqdm import tqdm

from actfit import KernelError
from benchmarks.clock import origin
from benchmarks.options import device as device_of
from benchmarks.options import names, one_of, output, whole
from benchmarks.rows import RESULTS
from benchmarks.training import jobs as training_jobs
from benchmarks.training import page as training_page
from benchmarks.training import plots as training_plots
from benchmarks.training import rows as training_rows
from benchmarks.training.jobs import SEEDS, TASKS, Job
from benchmarks.training.rows import TrainingRow
from benchmarks.training.runs import Settings
from benchmarks.training.variants import EVERY, STOCK, VARIANTS_OF

PROG = "training"
QUICK_SEEDS = 2
MOST = {"seeds": 1000, "steps": 1_000_000, "jobs": 256, "threads": 256}


@dataclass(frozen=True)
class Workload:
    """What is trained, how often, and where the rows go."""

    settings: list[Settings]
    variants: dict[str, list[str]]
    seeds: dict[str, int]
    processes: int
    out: Path | None
    fresh: bool


def workload(options: argparse.Namespace) -> Workload:
    """The options, checked; raises Misuse."""
    device = device_of(options.device).type
    size = "quick" if options.quick else one_of("size", options.size, ("small", "large"))
    variants = _variants(options.task, options.arms)
    tasks = list(variants)
    seeds = {task: QUICK_SEEDS if options.quick else SEEDS[task] for task in tasks}
    if options.seeds is not None:
        seeds = dict.fromkeys(tasks, whole("seeds", options.seeds, MOST["seeds"]))
    steps = None if options.steps is None else whole("steps", options.steps, MOST["steps"])
    default = 1 if device == "cuda" or options.quick else 2
    processes = default if options.jobs is None else whole("jobs", options.jobs, MOST["jobs"])
    threads = whole("threads", options.threads, MOST["threads"])
    out = output(options.out)
    if out is None and size != "quick":
        out = RESULTS / origin(torch.device(device))["device"] / "training.jsonl"
        out.parent.mkdir(parents=True, exist_ok=True)
    settings = [training_jobs.settings(task, size, device, threads, options.amp, steps=steps) for task in tasks]
    return Workload(settings, variants, seeds, processes, out, options.fresh)


def _variants(tasks: str | None, variants: str | None) -> dict[str, list[str]]:
    """The variants of each task, stock first; without --task, tasks that have none of --arms are left out."""
    asked, of_tasks = names("arms", variants, EVERY), {}
    for task in names("task", tasks, tuple(TASKS)):
        known = VARIANTS_OF[task]
        mine = [variant for variant in asked if variant in known]
        if mine:
            of_tasks[task] = [STOCK, *(variant for variant in mine if variant != STOCK)]
        elif tasks is not None:
            raise command.Misuse(f"arms of {task} must be of {', '.join(known)}, got {variants!r}")
    return of_tasks


def train(work: Workload) -> list[TrainingRow]:
    """All rows, also those of the file, which is written after each job. Raises Misuse for rows of other settings."""
    every = training_jobs.jobs(work.settings, work.variants, work.seeds)
    rows = {row.key: row for row in _kept(work, every)}
    missing = [job for job in every if not job.keys <= rows.keys()]
    if len(missing) < len(every):
        revisions = ", ".join(sorted({row.revision for row in rows.values()}))
        command.say(
            PROG, f"{len(every) - len(missing)} of {len(every)} trainings are taken from the file ({revisions})"
        )
    finished = training_jobs.done(missing, min(work.processes, max(1, len(missing))))
    for new in tqdm(finished, total=len(missing), unit="training", disable=None):
        rows |= {row.key: row for row in new}
        if work.out is not None and not command.is_device(work.out):
            training_rows.save(rows.values(), work.out)
    if work.out is not None:
        training_rows.save(rows.values(), work.out)
    return list(rows.values())


def _kept(work: Workload, every: Sequence[Job]) -> list[TrainingRow]:
    """The rows of the file that stay."""
    rows = [] if work.out is None else training_rows.load(work.out)
    strangers = training_jobs.others(rows, work.settings)
    if strangers and not work.fresh:
        raise command.Misuse(
            f"{work.out} holds trainings of {strangers[0].task} with other settings; give another --out, or --fresh to"
            " replace them"
        )
    again = {key for job in every for key in job.keys} if work.fresh else set()
    return [row for row in rows if row not in strangers and row.key not in again]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.training(__doc__).parse_args(arguments)
    work = workload(options)
    if work.settings[0].device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS gives the same bits with
    rows = train(work)
    print(training_page.summary(rows))
    if work.out is not None:
        pictures = [] if command.is_device(work.out) else training_plots.save(rows, work.out)
        print(f"\n{len(rows)} rows, wrote {work.out}", *(f"and {path}" for path in pictures))
    return command.GOOD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main, (KernelError,)))
