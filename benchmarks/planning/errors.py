"""The gradient's error by a plan, by uniform bits and by GACT's rule in as few bytes, in eager mode or compiled.

A network gets three batches: one to plan with, one to check plans with as `make_plan` does, and one held out for the
errors.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import exp, log
from typing import Any

import torch

from benchmarks.baselines import gact
from benchmarks.planning.nets import Case
from kernels.compression.planning import CompiledGradients
from kernels.memory.isolated import on_copies
from kernels.methods.planned import WIDTHS
from kernels.planning.batches import Call
from kernels.planning.make import PASSES
from kernels.planning.sensitivity import Bits, Gradients, SiteErrors, Trials, sensitivities
from kernels.planning.solve import Limits, Solution, error_of, everywhere, solve, widest
from kernels.planning.step import Step

LESS = (12, 8, 5, 3)  # times fewer bytes than stock
PLAN, UNIFORM, BETWEEN, GACT = "plan", "uniform", "uniform, interpolated", "GACT"
RIVALS = (UNIFORM, BETWEEN, GACT)
ERROR, PREDICTED, RATIO, KEPT, BITS = "error of the gradient", "predicted error", "ratio of errors", "B kept", "bits"
MENDED = "share mended to uniform"
COMPILED = ", compiled"  # at the end of a mode
Values = dict[tuple[str, str, str], float]  # by mode, implementation and unit


class Draws(Gradients):
    """Gradients by codes with random roundings, drawn again for each."""

    def variance(self, bits: Bits) -> float:
        """The gradient's variance by two draws, relative to its squared length."""
        pairs = zip(self._gradient(bits), self._gradient(bits), strict=True)
        apart = sum(float((a - b).double().square().sum()) for a, b in pairs if a is not None and b is not None)
        return apart / 2 / self._norm if self._norm else 0.0


class CompiledDraws(Draws, CompiledGradients):
    """`Draws` for the compiled network."""


@contextmanager
def gradients(case: Case, call: Call, kind: type[Gradients] = Gradients, rounding: str = "nearest") -> Iterator[Any]:
    """A context with the gradients of a batch; the network is restored afterwards."""
    with on_copies(case.module), torch.compiler.set_stance("force_eager"):
        yield kind(case.module, *call, None, Trials(rounding))


def of_seed(case: Case, step: Step, stock: int, compiled: bool = False) -> Values:
    """All errors of the network of one seed.

    Parameters
    ----------
    case
        The network and three batches.
    step
        The tensors that a step saves.
    stock
        Bytes that the unconverted network saves in eager mode.
    compiled
        Whether the network is compiled.
    """
    measured, drawing = (CompiledGradients, CompiledDraws) if compiled else (Gradients, Draws)
    names = [site.name for site in step.sites]
    to_plan, to_check, held_out = case.batches
    with gradients(case, to_plan, measured) as planning:
        alone = sensitivities(planning, names, PASSES)
    with gradients(case, to_plan, drawing, "stochastic") as drawn:
        sensitive = gact.sensitivities(drawn.variance, names, WIDTHS[0])
    limits = {times: Limits(kept=stock // times) for times in LESS}
    limits = {times: limit for times, limit in limits.items() if limit.hold(step, everywhere(step, WIDTHS[0]))}
    values: Values = {}
    with gradients(case, to_check, measured) as checking:
        plans = {times: _checked(checking, step, alone, limit) for times, limit in limits.items()}
    with gradients(case, held_out, measured) as held:
        points = _points(held, step, names)
        for times, limit in limits.items():
            mode = f"{times} × less" + COMPILED * compiled
            narrowed = _narrowed(step, sensitive, limit)
            values |= _at(mode, held, step, limit, plans[times], points, narrowed)
    return values


def _checked(checking: Gradients, step: Step, alone: SiteErrors, limit: Limits) -> tuple[Solution, bool]:
    """The plan, and whether uniform bits replaced it, as in `make_plan`."""
    plan, uniform = solve(step, alone, limit), widest(step, limit)
    if checking.error(plan.bits) <= checking.error(uniform):
        return plan, False
    return Solution(uniform, error_of(alone, uniform), plan.gap), True


def _points(held: Gradients, step: Step, names: Sequence[str]) -> list[tuple[int, float]]:
    """Bytes and errors of each width of uniform bits, and last of whole tensors."""
    every = [dict.fromkeys(names, bits) for bits in (*WIDTHS, None)]
    return [(step.kept_with(bits), held.error(bits) ** 0.5) for bits in every]


def _narrowed(step: Step, sensitive: Mapping[str, float], limit: Limits) -> Bits:
    sites = {site.name: site for site in step.sites}
    return gact.allocate(
        sensitive, WIDTHS, lambda name, bits: sites[name].bytes(bits), lambda bits: limit.hold(step, bits)
    )


def _at(
    mode: str,
    held: Gradients,
    step: Step,
    limit: Limits,
    plan: tuple[Solution, bool],
    points: Sequence[tuple[int, float]],
    narrowed: Bits,
) -> Values:
    """The errors, bytes and ratios for one budget."""
    solution, mended = plan
    uniform = widest(step, limit)
    width = next(bits for bits in uniform.values() if bits is not None)
    taken = {PLAN: solution.bits, UNIFORM: uniform, GACT: narrowed}
    errors = {way: held.error(bits) ** 0.5 for way, bits in taken.items()}
    errors[BETWEEN] = interpolated(points, limit.kept or 0)
    values: Values = {(mode, way, ERROR): error for way, error in errors.items()}
    values |= {(mode, way, KEPT): float(step.kept_with(bits)) for way, bits in taken.items()}
    values |= {(mode, PLAN, PREDICTED): solution.error**0.5, (mode, UNIFORM, BITS): float(width)}
    values[mode, PLAN, MENDED] = float(mended)
    if errors[PLAN]:
        values |= {(mode, f"{way} / {PLAN}", RATIO): errors[way] / errors[PLAN] for way in RIVALS}
        values[mode, f"{PREDICTED} / {ERROR}", RATIO] = solution.error**0.5 / errors[PLAN]
    return values


def interpolated(points: Sequence[tuple[int, float]], count: int) -> float:
    """The error of uniform codes at any number of bytes; between two widths its logarithm is linear in bytes.

    Between the widest codes and whole tensors, whose error is 0, its square is linear, as if a share of all tensors
    were whole.

    Parameters
    ----------
    points
        Bytes and errors of all widths in ascending order, and last of whole tensors.
    count
        Bytes, at least those of the narrowest width.
    """
    for (low, error), (high, less) in pairwise(points):
        if count < high:
            share = (count - low) / (high - low)
            if less <= 0 or error <= 0:
                return float(((1 - share) * error**2 + share * less**2) ** 0.5)
            return exp((1 - share) * log(error) + share * log(less))
    return points[-1][1]
