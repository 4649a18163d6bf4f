"""A few samples of a batch to measure errors on: some to make a plan with, others to check it."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from actfit.kernels import private
from actfit.kernels.errors import KernelError, shown

T = TypeVar("T")
# Elements of a channel that statistics of a batch are of. Two are 1 and -1 after a batch norm, whatever they were: its
# gradient is 0, but for errors.
ELEMENTS, MORE_SAMPLES = 16, 32


class Call(NamedTuple):
    """What a model is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def call_of(inputs: Any) -> Call:
    """The call for `inputs` as `make_plan` takes them, or a call itself; raises KernelError for anything else."""
    if isinstance(inputs, Call):
        return inputs
    if isinstance(inputs, Mapping):
        return Call((), dict(inputs))
    if not isinstance(inputs, Tensor | tuple | list):
        raise KernelError(
            "inputs must be a batch of training, a tensor, a tuple of arguments or a mapping of keyword arguments, got"
            f" {shown(inputs)}; torch.as_tensor makes a tensor of numbers"
        )
    return Call((inputs,) if isinstance(inputs, Tensor) else tuple(inputs), {})


def length(batch: Any) -> int | None:
    """The first dimension of all tensors in a batch; None if they differ, if one has none, or there are none."""
    lengths = {x.shape[0] if x.dim() else 0 for x in private.tree_leaves(batch) if isinstance(x, Tensor)}
    return lengths.pop() or None if len(lengths) == 1 else None


def part(batch: T, samples: int | None, check: bool = False) -> tuple[T, float]:
    """So many samples of a batch of nested tensors, to plan with or as many others to check with; and their share.

    All of it if tensors have different lengths, so that samples cannot be told apart, if there are too few, or if
    `samples` is None.
    """
    count = length(batch) or 0
    few = min(samples or 0, count // 2)
    if few < min(samples or 1, 2):
        return batch, 1.0
    cut = slice(few, 2 * few) if check else slice(few)
    some: T = private.tree_map(lambda x: x[cut] if isinstance(x, Tensor) else x, batch)
    return some, few / count


def copies(batch: T) -> T:
    """Copies of nested tensors: a model or a loss may change in place what it is given."""
    of_each = cache(_copy)  # of what is given twice, one
    copied: T = private.tree_map(lambda x: of_each(x) if isinstance(x, Tensor) else x, batch)
    return copied


def _copy(x: Tensor) -> Tensor:
    """A copy, of an expanded tensor an expanded one."""
    once = x.detach()[tuple(slice(None if stride else 1) for stride in x.stride())]
    return once.clone().expand(x.shape).requires_grad_(x.requires_grad)


def enough(model: nn.Module, batch: Any, samples: int | None) -> int | None:
    """So many samples, or more if a model's batch norms may need them; None: the whole batch."""
    if samples is None or samples >= ELEMENTS or not any(isinstance(x, nn.BatchNorm1d) for x in model.modules()):
        return samples
    return MORE_SAMPLES if (length(part(batch, MORE_SAMPLES)[0]) or 0) >= ELEMENTS else None


def on_samples(call: Call, targets: Any, samples: int | None, check: bool, run: Callable[[Call, Any, float], T]) -> T:
    """The result of `run` on copies of samples of a batch, with the share of the batch that they are.

    If it raises anything but KernelError or for want of memory, on more samples, and at last on the whole batch: a
    model or a loss may need these. `samples`: how many; None: the whole batch. `check`: whether they check plans, or
    else make them.
    """
    for count in dict.fromkeys((samples, max(samples or 0, MORE_SAMPLES))):
        some, share = part((call, targets), count, check)
        if share == 1.0:
            break
        try:
            return run(*copies(some), share)
        except (KernelError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # of any kind; if samples were not to blame, it is raised again
            continue
    return run(*copies((call, targets)), 1.0)
