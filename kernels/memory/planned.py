"""The command's plan for a budget: of a model on fake tensors, by errors of a narrow copy that runs for real."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kernels.memory import zoo
from kernels.planning.batches import call_of
from kernels.planning.budget import check
from kernels.planning.front import Front, front_of
from kernels.planning.make import plan_of
from kernels.planning.plan import Plan
from kernels.planning.task import Task

SEED = 0  # of the narrow copy's weights and inputs, and of what they are differentiated by


@dataclass(frozen=True)
class Planned:
    """A plan, and the front that it is on, if that was asked for."""

    plan: Plan
    front: Front | None


def planned(
    options: argparse.Namespace,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dtype: torch.dtype | None,
    progress: Callable[[str], object],
) -> Planned:
    """The plan for `options.budget`; raises KernelError as `make_plan` does."""
    stand_in = None
    torch.manual_seed(SEED)
    if options.model in zoo.names():
        progress("building a narrow copy")
        narrow, positional, named = zoo.narrow(options.model, dtype=dtype, attention=options.attention, act=options.act)
        stand_in = narrow, named or positional
    task = Task(model, call_of(kwargs or args), stand_in=stand_in, progress=progress)
    plan = plan_of(task, options.budget)
    if options.plot is None:
        return Planned(plan, None)
    return Planned(plan, front_of(task, plan, "peak" if isinstance(check(options.budget), int) else "kept"))
