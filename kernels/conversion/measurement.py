"""Measure: the bytes that each site of a model saves in training."""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from kernels.conversion.changes import Change, Decision, RerouteCalls, apply, isolate_calls, undo
from kernels.conversion.sites import AttributeSite, CallSite, Site, within
from kernels.errors import KernelError
from kernels.memory.accounting import CudaLike
from kernels.memory.making import line
from kernels.memory.measure import trial
from kernels.memory.saved import Saved, SavedTensor, like
from kernels.methods.method import Method
from kernels.methods.stock import Stock
from kernels.names import DTYPES

Run = Callable[..., Saved]  # (names of modules that the model does not list, context manager to run it in)
SMALL = 8  # bytes; an activation is larger


@dataclass(frozen=True)
class Measurement:
    """What one run of a model saved; all but `saved` by the names of its sites."""

    saved: Saved
    alone: Mapping[str, int]  # bytes that only this site saves
    shared: Mapping[frozenset[str], int]  # bytes that only these sites save
    dtypes: Mapping[str, torch.dtype]  # of what a site saves
    ours: Collection[str]  # sites that saved by a method of this package
    changed: Collection[str]  # sites whose saved tensor was changed in place afterwards
    others: Mapping[str, Sequence[str]]  # other operations that save the same tensors


def runner(model: nn.Module, inputs: Any, accounting: str) -> Run:
    """A function that runs the model with `inputs` and gives what it saves; see `Run`."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(isinstance(module, fsdp.FSDPModule) for module in model.modules()):
        raise KernelError("inputs must be left out after fully_shard, which cannot be measured: convert before it")
    if torch.is_inference_mode_enabled():
        raise KernelError("convert must measure outside of torch.inference_mode(), where nothing can be saved")
    kwargs = dict(inputs) if isinstance(inputs, Mapping) else {}
    args = () if isinstance(inputs, Mapping) else (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    training = not model.training  # a model in evaluation mode was just loaded; else each module keeps its mode
    ran = False

    def run(names: Mapping[nn.Module, str], under: AbstractContextManager[Any] | None = None) -> Saved:
        nonlocal ran
        under = under or (CudaLike() if accounting == "cuda" else None)
        try:
            with torch.compiler.set_stance("force_eager"):
                saved = trial(model, args, kwargs, names, under, training=training)
        except Exception as error:  # the model may raise any kind
            if ran or isinstance(error, KernelError | NotImplementedError | MemoryError | torch.OutOfMemoryError):
                raise
            raise KernelError(f"inputs must be what the model can be called with, got {line(error)}") from error
        ran = True
        return saved

    return run


def measure(sites: Collection[Site], run: Run, changes: Sequence[Change] = ()) -> Measurement:
    """Run a model with these changes, which were applied before."""
    calls = {change.new: change.site.name for change in changes if isinstance(change, RerouteCalls)}
    saved, names = run(calls), [site.name for site in sites]
    alone, shared = dict.fromkeys(names, 0), dict[frozenset[str], int]()
    dtypes, others = dict[str, torch.dtype](), dict[str, list[str]]()
    for tensor in saved.tensors:
        owners = frozenset(name for name in names for saver in tensor.by if within(saver.module, name))
        for name in owners:
            if tensor.dtype in DTYPES:
                dtypes.setdefault(name, getattr(torch, tensor.dtype))
            others.setdefault(name, []).extend(_other_savers(tensor, name))
        if all(any(within(saver.module, owner) for owner in owners) for saver in tensor.by):
            if len(owners) == 1:
                alone[next(iter(owners))] += tensor.bytes
            elif owners:
                shared[owners] = shared.get(owners, 0) + tensor.bytes
    ours = {saver.module for tensor in saved.tensors for saver in tensor.by if saver.method is not None}
    return Measurement(saved, alone, shared, dtypes, ours, {saver.module for saver in saved.changed}, others)


def _other_savers(tensor: SavedTensor, name: str) -> list[str]:
    if tensor.bytes <= SMALL:
        return []
    savers = [saver for saver in tensor.by if not within(saver.module, name)]
    return [f"{like(saver.module) or 'the model'} ({saver.operation})" for saver in savers]


def measure_with(methods: Mapping[Site, Method], sites: Collection[Site], run: Run) -> Measurement:
    """Run a model with methods at some of its sites, and undo them afterwards."""
    changes: list[Change] = []
    try:
        for site in sites:
            if site in methods:
                apply(site, Decision(methods[site]), changes)
        isolate_calls((site for site in sites if site not in methods), changes)
        return measure(sites, run, changes)
    finally:
        undo(changes)


def measure_stock(selected: Collection[Site], sites: Collection[Site], run: Run) -> Measurement:
    """Run a model before conversion. Functions are replaced by stock modules, so that their bytes count apart."""
    functions: dict[Site, Method] = {site: Stock() for site in selected if isinstance(site, AttributeSite | CallSite)}
    if not functions:
        return measure(sites, run)
    return replace(measure_with(functions, sites, run), saved=run({}))
