"""What operations would save on CUDA, counted on fake tensors of the CPU.

It handles three differences: dropout saves a mask of one byte an element on CUDA, but one of the input's dtype on the
CPU; attention is fused on CUDA also with dropout, and saves no S×S tensor; and the statistics of a layer norm are
float32 on CUDA, but of the input's dtype on the CPU. Other operations count as on the CPU: the statistics of group and
batch norms in 16 bits, and RMSNorm, which is one kernel on CUDA, may differ.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from actfit.kernels.errors import KernelError
from actfit.kernels.modes import DispatchMode
from actfit.kernels.names import ACCOUNTINGS

Within = Callable[[], AbstractContextManager[Any]]
aten = torch.ops.aten


def within_of(accounting: str) -> Within:
    """What a model runs in, to be counted so; raises KernelError for another name."""
    if accounting not in ACCOUNTINGS:
        raise KernelError(f"accounting must be one of {', '.join(ACCOUNTINGS)}, got {accounting!r}")
    return cuda_like if accounting == "cuda" else nullcontext


@contextmanager
def cuda_like() -> Iterator[None]:
    """Meanwhile fake tensors of the CPU are saved as CUDA would save them, in forward and backward."""
    with _Statistics(), CudaLike():
        yield


class CudaLike(TorchFunctionMode):
    """Computes dropout and attention by the operations that CUDA has for them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _CALLING:
            with self:  # which torch has left, though the function calls others
                return _CALLING[func](*args, **(kwargs or {}))
        replacement = _OPERATIONS.get(func)
        return (replacement or func)(*args, **(kwargs or {}))


class _Statistics(DispatchMode):
    """Lets layer norms of 16-bit tensors save their statistics in float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not aten.native_layer_norm.default or args[0].device.type != "cpu":
            return result
        y, *statistics = result
        return y, *(x.to(torch.promote_types(x.dtype, torch.float32)) for x in statistics)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or not 0 < p < 1 or inplace or input.device.type != "cpu":
        return F.dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def _layer_norm(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if input.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        input = input.to(torch.promote_types(input.dtype, torch.float32))  # as CUDA's autocast does
    return torch.layer_norm(input, *args, **kwargs)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """FlashAttention for 16-bit tensors without a mask, else the memory-efficient kernel."""
    if query.device.type != "cpu" or query.dtype == torch.float64 or query.dim() != 4:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (tensor.to(torch.get_autocast_dtype("cpu")) for tensor in (query, key, value))
    if attn_mask is None and query.dtype != torch.float32:
        made = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)
        return made[0]
    if attn_mask is not None:
        attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])
    made = aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
    )
    return made[0]


def _unasked(function: Any) -> FunctionType:
    """The function itself, but without torch's question whether a mode takes its place."""
    within = {**function.__globals__, "has_torch_function": lambda _: False}
    return FunctionType(function.__code__, within, argdefs=function.__defaults__)


# Functions that call others: backward runs the forward of a checkpoint again.
_CALLING: dict[Any, Any] = {
    function: _unasked(function) for function in (F.multi_head_attention_forward, torch.autograd.backward)
}
_OPERATIONS: dict[Any, Any] = {
    F.dropout: _dropout,
    torch.dropout: lambda input, p, train: _dropout(input, p, train),
    F.scaled_dot_product_attention: _attention,
    F.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
}
