"""Run `python -m benchmarks.training` in this process, with its quickest settings."""

import torch

from actfit.coefficients import command
from benchmarks.training import __main__ as bench
from benchmarks.training import jobs as training_jobs

CPU = torch.device("cpu")
QUICK = ("--quick", "--task", "text", "--seeds", "1")


def run(*arguments):
    return command.run(bench.PROG, lambda: bench.main(arguments))


def quick(task, **changed):
    return training_jobs.settings(task, "quick", "cpu", 1, False, **changed)
