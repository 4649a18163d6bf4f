"""Floating-point operations of products of matrices, convolutions and attention: what most of a step's time goes to.

They are those that `torch.utils.flop_counter` knows, and fused attention.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry

_ATTENTION = "_scaled_dot_product_"  # how the names of fused attention begin
# Products of queries, keys and values: two forward; backward computes the scores again, and four gradients.
_FORWARD, _BACKWARD = 2, 5


def operations(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Multiplications and additions of one operation of PyTorch; 0 for all but those products.

    Masks are not seen: causal attention counts in full, as in `torch.utils.flop_counter`.
    """
    packet = getattr(func, "_overloadpacket", func)
    name = getattr(packet, "__name__", "")
    if name.startswith(_ATTENTION):
        backward = "backward" in name
        query, key, value = args[backward : backward + 3]
        return (_BACKWARD if backward else _FORWARD) * _scores(query, key, value)
    count = flop_registry.get(packet)
    try:
        return 0 if count is None else int(count(*args, **kwargs, out_val=result))
    except (TypeError, AssertionError):  # an overload that the formula is not for; to count must not end a step
        return 0


def _scores(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Operations of one product, of scores and values or the like; grouped keys serve several heads."""
    count: int = math.prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    return count
