"""Functions that are run, or repeated, in a way of their own."""

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def dropout_scale(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """What a dropout multiplies by what it leaves; all are given their probability second."""
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    return 1 / (1 - p) if 0 <= p < 1 else 0.0


def dropped(x: Tensor, noise: Tensor, scale: float) -> Tensor:
    """What a dropout made of x: the noise is 0 or the scale already, or a mask."""
    return x * noise * scale if noise.dtype == torch.bool else x * noise


def _without_check(function: Any) -> Any:
    """A function of torch.nn.functional, which does not hand itself over to function modes, but what it calls."""
    names = {**function.__globals__, "has_torch_function": lambda _: False}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


multi_head_attention = _without_check(F.multi_head_attention_forward)


def in_order(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of attention, whose tensors are first and without names: a checkpoint does not save named ones."""
    names = ("query", "key", "value", "attn_mask")[len(args) :]
    first = *args, *(kwargs.get(name) for name in names)
    return first, {name: value for name, value in kwargs.items() if name not in names}


def attention_again(function: Any, args: Any, kwargs: Any) -> Tensor:
    """Attention, whose backward computes it again from decoded q, k and v.

    Its own would take the log-sum-exp of the exact logits, and an error of a logit would be a factor in a probability.
    """
    drawn = (args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)) > 0
    result: Tensor = checkpoint(function, *args, use_reentrant=False, preserve_rng_state=drawn, **kwargs)
    return result
