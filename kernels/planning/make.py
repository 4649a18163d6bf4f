"""Planning: observe a step, measure what codes do to the gradient, solve, and check on other samples."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor

from kernels.errors import KernelError
from kernels.memory.isolated import on_copies, train
from kernels.memory.measure import trial
from kernels.memory.step import Living, run_step
from kernels.methods.every_tensor import SMALLEST, SMALLEST_GROUP
from kernels.planning.batches import Call, call_of, parts
from kernels.planning.budget import limits
from kernels.planning.observe import Step, observe
from kernels.planning.plan import Bytes, Errors, Plan, PlannedSite
from kernels.planning.sensitivity import Bits, Gradients, Loss, Trials, sensitivities
from kernels.planning.solve import Limits, Solution, solve, widest

SAMPLES = 2  # by which errors are measured
PASSES = 64  # of backward, as many as are allowed for it


def make_plan(
    model: nn.Module,
    inputs: Any,
    budget: str | float,
    *,
    loss: Loss | None = None,
    rounding: str = "nearest",
    samples: int = SAMPLES,
    passes: int = PASSES,
    stand_in: tuple[nn.Module, Any] | None = None,
) -> Plan:
    """The plan of least error of the gradient for a budget of memory; the model is left as it was.

    Parameters
    ----------
    model
        As it trains: not converted, on its device. It may be on fake tensors, with a `stand_in`.
    inputs
        A whole batch of training, as `convert` takes it: its size says what a step takes.
    budget
        Bytes at the peak of forward and backward, over what is there before them (parameters, gradients, the
        optimizer's state), as "24GiB"; or, between 0 and 1, a share of the bytes that the model keeps for backward now.
    loss
        Makes the loss of the model's output. By default the output's own, as models of transformers give with labels,
        or else random linear functions.
    rounding
        "nearest" or "stochastic".
    samples
        How many of the batch errors are measured by; as many others check the plan.
    passes
        Backward passes over those samples; three for each kind of saved tensor are needed.
    stand_in
        Another model with modules of the same names, and its inputs, to measure errors on: a narrow one of one that is
        too large.

    Returns
    -------
    Plan
        Never one with a larger error on the checking samples than the widest codes that fit, the same everywhere.

    Raises
    ------
    KernelError
        For a budget that cannot be held, with the least that can; for a model that does not run on fake tensors.
    """
    call = call_of(inputs)
    training, living = not model.training, Living()  # it comes from a file, then; else modes are as the user has them
    step = observe(model, *call, training=training)
    run_step(living, model, *call, training=training)
    stock = Bytes(trial(model, *call, training=training).total, living.peak)
    limit = limits(budget, stock.kept)
    name = type(model).__name__
    if _within(stock, limit):
        return Plan(name, str(budget), rounding, (), stock, stock, Errors(0.0, 0.0), 0, 0.0, 0.0)
    uniform = widest(step, limit)
    measured, given = (model, call) if stand_in is None else (stand_in[0], call_of(stand_in[1]))
    few = parts(given, samples)
    trials = Trials(rounding, smallest=int(SMALLEST * few.share) if stand_in is None else SMALLEST_GROUP)
    names = [site.name for site in step.sites]
    with _gradients(measured, few.to_plan, loss, trials, names) as gradients:
        errors = sensitivities(gradients, names, passes)
    solution = solve(step, errors, limit)
    with _gradients(measured, few.to_check, loss, trials, names) as gradients:
        of_plan, of_uniform = gradients.error(solution.bits), gradients.error(uniform)
    if of_plan > of_uniform:
        total = sum(errors[site][bits] for site, bits in uniform.items() if bits is not None)
        solution, of_plan = Solution(uniform, total, solution.gap), of_uniform
    return Plan(
        name,
        str(budget),
        rounding,
        _sites(step, solution.bits, errors),
        stock,
        Bytes(step.kept_with(solution.bits), step.peak_with(solution.bits)),
        Errors(solution.error**0.5, of_plan**0.5),
        next(bits for bits in uniform.values() if bits is not None),
        of_uniform**0.5,
        solution.gap,
        "" if stand_in is None else f"a {type(stand_in[0]).__name__} that stands in for it",
    )


def _within(stock: Bytes, limit: Limits) -> bool:
    return (limit.peak is None or stock.peak <= limit.peak) and (limit.kept is None or stock.kept <= limit.kept)


@contextmanager
def _gradients(
    model: nn.Module, call: Call, loss: Loss | None, trials: Trials, names: Collection[str]
) -> Iterator[Gradients]:
    if any(isinstance(weight, FakeTensor) or weight.is_meta for weight in model.parameters()):
        raise KernelError(
            "model must have numbers for its errors to be measured, got one of fake tensors; give"
            " stand_in=(model, inputs): a narrow one with modules of the same names"
        )
    with on_copies(model), torch.compiler.set_stance("force_eager"):
        if not model.training:
            train(model)
        gradients = Gradients(model, *call, loss, trials)
        missing = set(names) - trials.sites.keys()
        if missing:
            raise KernelError(
                f"model must save the same tensors in each step, got none at {min(missing)!r} with"
                f" {len(names) - len(missing)} others; its forward depends on numbers, which a plan cannot know"
            )
        yield gradients


def _sites(step: Step, bits: Bits, errors: Mapping[str, Mapping[int, float]]) -> tuple[PlannedSite, ...]:
    return tuple(
        PlannedSite(site.name, width, site.whole, site.bytes(width), 0.0 if width is None else errors[site.name][width])
        for site in step.sites
        for width in (bits[site.name],)
    )
