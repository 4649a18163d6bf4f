"""The command's plan for a budget: bytes of a model on fake tensors, errors of a narrow copy that runs for real."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from actfit.kernels.memory import zoo
from actfit.kernels.planning.batches import Call
from actfit.kernels.planning.budget import check
from actfit.kernels.planning.fronts import By, Front, front_of
from actfit.kernels.planning.make import task_of
from actfit.kernels.planning.plan import Plan
from actfit.kernels.planning.planner import plan_of

SEED = 0  # of the narrow copy's weights and inputs, and of its gradient


def plan_for_budget(
    options: argparse.Namespace, model: nn.Module, call: Call, progress: Callable[[str], object]
) -> tuple[Plan, Front | None]:
    """The plan for `options.budget`, and its front if --plot asks for it; raises KernelError as `make_plan` does."""
    torch.manual_seed(SEED)
    stand_in = narrow_copy(options, progress) if options.model in zoo.names() else None
    named: Any = {"progress": progress, "compiles": options.compiled, "optimizer": options.optimizer}
    task = task_of(model, call, stand_in=stand_in, **named)
    with nullcontext() if stand_in is None else one_thread():
        plan = plan_of(task, options.budget, goal=options.goal or "time")
        by: By = "peak" if isinstance(check(options.budget), int) else "kept"
        return plan, None if options.plot is None else front_of(task, plan, by)


def narrow_copy(options: argparse.Namespace, progress: Callable[[str], object]) -> tuple[nn.Module, Any]:
    """A copy to measure errors on, and its inputs.

    It has 32 bits or more, whatever the model's dtype: in 16 bits any change rounds the whole gradient differently, so
    that the error of a single group of tensors would seem as large as that of all.
    """
    progress("building a narrow copy")
    dtype = torch.float64 if options.dtype == "float64" else torch.float32
    model, args, kwargs = zoo.narrow(options.model, dtype=dtype, attention=options.attention, act=options.act)
    return model, kwargs or args


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs on one thread: for tensors as small as those of a narrow copy, threads mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
