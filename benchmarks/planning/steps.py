"""Bytes and seconds of a step by a plan, beside those of stock, uniform bits, checkpoints and PyTorch's budget."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from benchmarks.baselines.checkpointed import checkpoint_each
from benchmarks.clock import clock_of, rounds
from benchmarks.compression import ways
from benchmarks.compression.meter import measured
from benchmarks.compression.models import Size
from benchmarks.planning.nets import CPU, blocks, build
from kernels import convert
from kernels.memory.measure import trial
from kernels.memory.step import Living, peak_bytes, run_step
from kernels.methods.planned import WIDTHS
from kernels.planning import Plan, make_plan
from kernels.planning.batches import Call
from kernels.planning.observe import observe
from kernels.planning.solve import everywhere

STOCK, PLAN, UNIFORM, CHECKPOINT, BUDGET = "stock", "plan", "uniform", "checkpoint", "budget"
COMPILED = "compiled with budget 0.1"
TIMED_WAYS = (STOCK, PLAN, UNIFORM, CHECKPOINT, COMPILED)
SHARE = 0.2  # of the bytes that stock saves: the budget of timed steps
PREDICTED = "plan, predicted"
KEPT, PEAK, SECONDS = "B kept", "B at the peak", "s"
Values = dict[tuple[str, str], float]  # by implementation and unit


def counted(name: str, size: Size) -> Values:
    """Bytes by accounting; the budget is midway between stock's peak and the least possible one."""
    case = build(name, size, 0, 2)
    call = case.batches[0]
    step = observe(case.module, *call)
    kept, peak = trial(case.module, *call).total, peak_bytes(case.module, *call.args, **call.kwargs)
    least = step.peak_with(everywhere(step, WIDTHS[0]))
    budget = (least + peak) // 2
    begun = time.perf_counter()
    plan = make_plan(case.module, _inputs(call), budget)
    seconds = time.perf_counter() - begun
    report = convert(case.module, plan=plan)
    planned = trial(case.module, *call).total, peak_bytes(case.module, *call.args, **call.kwargs)
    report.revert()
    values: Values = {(BUDGET, PEAK): budget, (PLAN, SECONDS): seconds, (PREDICTED, PEAK): plan.planned.peak}
    for way, (of_kept, of_peak) in {
        STOCK: (kept, peak),
        PLAN: planned,
        CHECKPOINT: checkpointed(case.module, call),
    }.items():
        values |= {(way, KEPT): of_kept, (way, PEAK): of_peak}
    return values


def checkpointed(module: nn.Module, call: Call) -> tuple[int, int]:
    """Bytes kept for backward and at the peak with each block checkpointed, measured on a copy."""
    living, kept = Living(), list[int]()

    def prepare(copied: nn.Module) -> None:
        checkpoint_each(blocks(copied))

    run_step(living, module, *call, prepare=prepare, between=lambda results: kept.append(living.now_without(results)))
    return kept[0], living.peak


def _inputs(call: Call) -> Any:
    return call.kwargs or call.args


def allocated(given: Mapping[str, Callable[[], Tensor]], plan: Plan) -> Values:
    """Bytes by the allocator, above those before a step. given: the loss of each way."""
    values: Values = {(BUDGET, KEPT): SHARE * plan.stock.kept, (PREDICTED, PEAK): plan.planned.peak}
    for way, run in given.items():
        with ways.settings_of(way):
            run().backward()  # compiles, and allocates the gradients
            bytes = measured(run, CPU)
        values |= {(way, KEPT): bytes.kept, (way, PEAK): bytes.peak}
    return values


def plan_of(name: str, size: Size) -> Plan:
    """The plan for SHARE of the bytes that stock saves."""
    case = build(name, size, 0, 1)
    return make_plan(case.module, _inputs(case.batches[0]), SHARE)


def loss(name: str, size: Size, way: str, plan: Plan) -> Callable[[], Tensor]:
    """Forward up to the loss in one way, as a function with a network of its own."""
    net = build(name, size, 0, 1).net()
    if way == PLAN:
        convert(net.module, plan=plan)
    elif way == UNIFORM:
        convert(net.module, method="compress", bits=plan.uniform)
    return ways.prepared(net, way if way in (CHECKPOINT, COMPILED) else ways.EAGER)


def timed(given: Mapping[str, Callable[[], Tensor]], runs: int) -> dict[str, list[float]]:
    """Seconds of forward and backward, in rounds in which all ways take turns."""

    def step(way: str) -> None:
        with ways.settings_of(way):
            given[way]().backward()

    calls = {way: partial(step, way) for way in given}
    return {way: list(seconds) for way, (seconds, _) in rounds(clock_of(CPU), calls, runs).items()}
