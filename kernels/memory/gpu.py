"""Whether training fits a GPU: the peak of a step in each way, the largest batch, and the time that costs predict."""

import argparse
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from math import floor
from typing import Any

import torch
from torch import Tensor, nn

from actfit.kernels import private
from actfit.kernels.errors import KernelError
from actfit.kernels.graph.handle import Handle, compress
from actfit.kernels.memory import zoo
from actfit.kernels.memory.card import CHECKPOINT, EXACT, NO_LOSS, PEAK, PLAN, PLANNED, STOCK, TIME, Before, Card, Row
from actfit.kernels.memory.planned import narrow_copy, one_thread
from actfit.kernels.memory.step import peak_bytes
from actfit.kernels.planning.batches import Call, length
from actfit.kernels.planning.blocks import recomputing, repeated_blocks
from actfit.kernels.planning.budget import check
from actfit.kernels.planning.make import task_of
from actfit.kernels.planning.plan import Plan
from actfit.kernels.planning.planner import plan_of
from actfit.kernels.planning.prices import Parts, usual
from actfit.kernels.planning.training import KINDS, of_step

TRIES = 5  # batches that are measured beside the given one and twice as many; the models tried needed one


def measure(options: argparse.Namespace, model: nn.Module, call: Call, progress: Callable[[str], object]) -> Card:
    """What fits `options.gpu`, of a model on fake tensors; raises KernelError if it does not run on them."""
    gpu, before = int(check(options.gpu)), before_step(model, options.optimizer)
    if options.model in zoo.names():
        call = call._replace(kwargs=_labelled(model, call.kwargs))
    blocks = repeated_blocks(model)
    prices, rows, notes = usual(blocks), list[Row](), [PEAK, TIME]

    def add(way: str, within: Callable[[], AbstractContextManager[Any]], time: float, gradient: str) -> None:
        progress(f"a step: {way}")
        with within():
            here, largest = _peaks(model, call, before, gpu)
        rows.append(Row(way, here, largest, time, gradient))

    add(STOCK, nullcontext, 1.0, "exact")
    add(EXACT, partial(compressed, model), prices.time(Parts(1, 0, 0), 0), "exact")
    for bits in (8, 4):
        add(f"{bits} bits", partial(compressed, model, bits=bits), prices.time(Parts(1, 0, 0), 1), "approximate")
    if blocks:
        add(CHECKPOINT, partial(recomputing, model, blocks), prices.time(Parts(0, 1, 0), 0), "exact")
    room = gpu - before.held
    if rows[0].peak > gpu and room > before.passing:
        try:
            plan = _plan(options, model, call, room, progress)
        except KernelError as error:
            notes.append(f"{PLAN}: {error}")
        else:
            rows.append(_planned(plan, call, before, gpu, rows))
            notes.append(PLANNED)
    if "labels" not in call.kwargs:
        notes.append(NO_LOSS)
    return Card(gpu, options.optimizer, before, tuple(rows), tuple(notes))


def _labelled(model: nn.Module, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a model of transformers, with labels if it can compute a loss from them."""
    if "labels" not in inspect.signature(model.forward).parameters:
        return kwargs
    first, tokens = next(iter(kwargs.values())), kwargs.get("input_ids")
    if tokens is not None and getattr(model, "loss_type", "") is None:  # GPT-2's, where transformers takes this one
        model.loss_type = "ForCausalLM"
    return {**kwargs, "labels": first.new_zeros(len(first), dtype=torch.long) if tokens is None else tokens}


@contextmanager
def compressed(model: nn.Module, **how: Any) -> Iterator[Handle]:
    """Compresses a model so while it is entered."""
    handle = compress(model, **how)
    try:
        yield handle
    finally:
        handle.remove()


def before_step(model: nn.Module, optimizer: str) -> Before:
    """What a step finds; PyTorch's optimizer is taken to work as on CUDA, on all weights at once."""
    weights = sum(x.nbytes for x in (*model.parameters(), *model.buffers()))
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    gradients = sum(weight.nbytes for weight in trained)
    if optimizer not in KINDS or not trained:
        return Before(weights, gradients, 0, 0)
    return Before(weights, gradients, *of_step(KINDS[optimizer](trained, lr=1e-3), on_gpu=True))


def _peaks(model: nn.Module, call: Call, before: Before, gpu: int) -> tuple[int, int | None]:
    """Bytes of a step of the given batch, and the largest batch that fits.

    A peak is the largest of sums, one for each moment, that grow in proportion to the batch: a line through two of
    its points is nowhere above it outside of these. So a batch is found by a line, and counts only if measured. Codes,
    which small tensors lack, may bend it the other way: as soon as some batches fit and others do not, it is between.
    """
    batch, room = length(call), gpu - before.held

    def taken(samples: int | None) -> int:
        args, kwargs = call if samples is None else _repeated(call, samples)
        given: int = sum(x.nbytes for x in private.tree_leaves((args, kwargs)) if isinstance(x, Tensor))
        return given + peak_bytes(model, *args, accounting="cuda", **kwargs)

    here = taken(None)
    peak = before.held + max(here, before.passing)
    if batch is None or room < before.passing:
        return peak, None if batch is None else 0
    known = {batch: here, 2 * batch: taken(2 * batch)}
    for _ in range(TRIES):
        fitting, others = ([n for n in known if (known[n] <= room) == fits] for fits in (True, False))
        if fitting and others:
            first, second = max(fitting), min(others)
        else:
            first, second = sorted(sorted(known, key=lambda samples: abs(known[samples] - room))[:2])
        rise = (known[second] - known[first]) / (second - first)
        guess = floor(first + (room - known[first]) / rise) if rise > 0 else 2 * second
        if guess < 1 or guess in known:
            break
        known[guess] = taken(guess)
    return peak, max((samples for samples, amount in known.items() if amount <= room), default=0)


def _repeated(call: Call, samples: int) -> Call:
    """A call of another batch: the first sample so many times."""

    def repeated(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.detach()[:1].repeat(samples, *[1] * (x.dim() - 1)).requires_grad_(x.requires_grad)

    result: Call = private.tree_map(repeated, call)
    return result


def _plan(
    options: argparse.Namespace, model: nn.Module, call: Call, room: int, progress: Callable[[str], object]
) -> Plan:
    """The plan for what is left of the GPU: by errors of a narrow copy, or an exact one of a user's model."""
    stand_in: tuple[nn.Module, Any] = (model, call)
    if named := options.model in zoo.names():
        narrow, inputs = narrow_copy(options, progress)
        stand_in = narrow, _labelled(narrow, inputs) if isinstance(inputs, dict) else inputs
    with one_thread():
        return plan_of(task_of(model, call, stand_in=stand_in, progress=progress), room, None if named else 0.0)


def _planned(plan: Plan, call: Call, before: Before, gpu: int, rows: Sequence[Row]) -> Row:
    """The row of a plan. It mixes what the exact rows do, so its largest batch is at least theirs."""
    peak, error = before.held + max(plan.planned.peak, before.passing), plan.errors.measured
    largest = max((row.largest or 0 for row in rows if row.gradient == "exact"), default=0)
    if peak <= gpu:
        largest = max(largest, length(call) or 0)
    return Row(PLAN, peak, largest or None, plan.time, f"{error:.1%} off" if error else "exact")
