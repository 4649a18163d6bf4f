"""What a model saves for backward: unchanged, with each front end of nested forward AD, and with other methods."""

import copy
import inspect
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from kernels import private
from kernels.errors import KernelError
from kernels.forward_ad.rewrite import Checkpointed, RegionModule
from kernels.forward_ad.static import Backend, check, exported, traced, undisturbed
from kernels.forward_ad.wrapping import Wrapped, wrap
from kernels.memory.making import line
from kernels.memory.measure import saved_bytes
from kernels.memory.saved import size

# The partitioner of torch.compile, which selects what to recompute, with no compiler after it.
_PARTITIONER = "aot_eager_decomp_partition"
_VERBS = {"nested, eager": "run", "nested, traced": "traced", "nested, exported": "exported"}


@dataclass(frozen=True)
class Way:
    """A way to run a model.

    Attributes
    ----------
    name
        Its name.
    kept
        Bytes of activations saved for backward.
    chains
        Number of chains rewritten, where that is known.
    reason
        Why the model cannot run in this way, or "".
    """

    name: str
    kept: int | None = None
    chains: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """All ways; the first is the unchanged model."""

    ways: Sequence[Way]

    def __getitem__(self, name: str) -> Way:
        return {way.name: way for way in self.ways}[name]

    def __str__(self) -> str:
        lines = ["| way | chains | kept for backward | of plain |", "|---|---:|---:|---:|"]
        plain = self.ways[0].kept or 0
        for way in self.ways:
            kept = size(way.kept) if way.kept is not None else way.reason
            share = f"{way.kept / plain:.1%}" if way.kept is not None and plain else ""
            lines.append(f"| {way.name} | {'' if way.chains is None else way.chains} | {kept} | {share} |")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The ways as a list of objects."""
        return json.dumps([asdict(way) for way in self.ways], indent=1) + "\n"


def report(model: nn.Module, /, *inputs: Any, **kwargs: Any) -> Report:
    """What a call of a model saves for backward in each way to run it.

    The ways are the unchanged model, each front end of nested forward AD, the same chains checkpointed, and the
    partitioner of torch.compile. A copy of the model is measured, in its mode; compiled code runs on real tensors.

    Parameters
    ----------
    model
        A module without nested forward AD.
    *inputs, **kwargs
        What the model is called with.

    Returns
    -------
    Report
        The ways with their bytes, or with the reason why a way cannot run the model.

    Raises
    ------
    KernelError
        If `model` is no model. An error of the unchanged model itself is passed on.
    """
    check(model)
    if any(isinstance(vars(submodule).get("forward"), Wrapped) for submodule in model.modules()):
        raise KernelError("model must be given as it is without nested forward AD, got one that is wrapped; unwrap it")
    with undisturbed(), _measuring():
        plain = saved_bytes(model, *inputs, **kwargs).total
        try:
            copied = copy.deepcopy(model)
        except Exception as error:
            raise KernelError(f"model must be one that can be copied, got {line(error)}") from error
        ways = {
            "nested, eager": lambda: (saved_bytes(wrap(copy.deepcopy(copied)), *inputs, **kwargs).total, None),
            "nested, traced": lambda: _static(traced(copied, *_positional(copied, inputs, kwargs)), inputs, kwargs),
            "nested, exported": lambda: _static(exported(copied, inputs, kwargs), inputs, kwargs),
            "nested, compiled": lambda: _dynamo(copied, Backend(), inputs, kwargs),
            "the same chains checkpointed": lambda: _dynamo(copied, Backend(Checkpointed), inputs, kwargs),
            "torch.compile's partitioner": lambda: (_compiled(copied, _PARTITIONER, inputs, kwargs), None),
        }
        return Report([Way("plain", plain), *(_tried(name, run) for name, run in ways.items())])


def _tried(name: str, run: Callable[[], tuple[int, int | None]]) -> Way:
    try:
        return Way(name, *run())
    except Exception as error:  # a compiler's, of any kind
        reason = str(error) if isinstance(error, KernelError) else line(error)
        return Way(name, reason=f"cannot be {_VERBS.get(name, 'compiled')}: {reason}")


def _positional(model: nn.Module, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    bound = inspect.signature(model.forward).bind(*inputs, **kwargs)
    bound.apply_defaults()
    if bound.kwargs:
        raise KernelError(f"inputs must be positional to trace with, got {', '.join(bound.kwargs)} by name alone")
    return bound.args


def _static(module: nn.Module, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, int]:
    chains = len([submodule for submodule in module.modules() if isinstance(submodule, RegionModule)])
    return saved_bytes(module, *inputs, **kwargs).total, chains


def _dynamo(model: nn.Module, backend: Backend, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, int]:
    saved = _compiled(model, backend, inputs, kwargs)
    return saved, backend.regions


def _compiled(model: nn.Module, backend: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    # Else earlier compilations would count against the limit, and the model would run uncompiled with only a warning.
    limits = {"recompile_limit": 1000, "fail_on_recompile_limit_hit": True}
    with private.dynamo_config.patch(limits):
        return saved_bytes(torch.compile(model, backend=backend), *inputs, **kwargs).total


@contextmanager
def _measuring() -> Iterator[None]:
    """Silences torch's warnings about copying and compiling graphs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
