"""Few samples of a batch, by which errors are measured: one part to plan by, another to check the plan by."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


class Call(NamedTuple):
    """What a model is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def call_of(inputs: Any) -> Call:
    """Of `inputs` as `convert` takes them."""
    if isinstance(inputs, Mapping):
        return Call((), dict(inputs))
    return Call((inputs,) if isinstance(inputs, Tensor) else tuple(inputs), {})


class Parts(NamedTuple):
    """Samples to plan by, others to check by, and the share of the batch that each of both is."""

    to_plan: Call
    to_check: Call
    share: float


def parts(call: Call, samples: int) -> Parts:
    """So many samples of a batch to plan by, and as many others to check by.

    The whole batch serves for both where tensors do not tell the samples, by having all the same length, or where there
    are too few of them.
    """
    lengths = {x.shape[0] if x.dim() else 0 for x in tree_leaves(call) if isinstance(x, Tensor)}
    count = lengths.pop() if len(lengths) == 1 else 0
    few = min(samples, count // 2)
    if few < min(samples, 2):
        return Parts(call, call, 1.0)

    def cut(start: int) -> Call:
        return Call(*tree_map(lambda x: x[start : start + few] if isinstance(x, Tensor) else x, tuple(call)))

    return Parts(cut(0), cut(few), few / count)
