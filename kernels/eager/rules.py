"""Functions that are run, or repeated, in a way of their own."""

from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def dropout_scale(x: Tensor, p: float = 0.5, *_: Any, **__: Any) -> float:
    """What a dropout multiplies by what it leaves."""
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


def attention_again(function: Any, args: Any, kwargs: Any) -> Tensor:
    """Attention, whose backward computes it again from decoded q, k and v.

    Its own would take the log-sum-exp of the exact logits, and an error of a logit would be a factor in a probability.
    """
    drawn = (args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)) > 0
    result: Tensor = checkpoint(function, *args, use_reentrant=False, preserve_rng_state=drawn, **kwargs)
    return result
