"""What operations would save on CUDA, counted on the CPU.

It handles three differences: dropout saves a mask of one byte an element on CUDA, but one of the input's dtype on the
CPU; attention with dropout saves no S×S tensor on CUDA; and the statistics of a layer norm are float32 on CUDA, but of
the input's dtype on the CPU. Under `CudaLike` these operations save what CUDA's do (torch 2.13: FlashAttention for
16-bit tensors without a mask, else the memory-efficient kernel). Their results are right, except that attention leaves
out dropout; they have no backward. Other operations count as on the CPU: the statistics of group and batch norms in 16
bits, and RMSNorm, which is one kernel on CUDA, may differ.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from kernels.methods.method import SavedBy


class CudaLike(TorchFunctionMode):
    """Makes dropout, attention and layer norm of CPU tensors save what they save on CUDA.

    Not if another function of torch calls them: `multi_head_attention_forward`.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        replacement = SAVING_AS_CUDA.get(func)
        return (replacement or func)(*args, **(kwargs or {}))


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or not 0 < p < 1 or inplace or input.device.type != "cpu":
        return F.dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def _torch_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    return _dropout(input, p, train)


def _layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    shape = list(normalized_shape)
    if input.device.type != "cpu" or input.dtype not in (torch.float16, torch.bfloat16):
        return F.layer_norm(input, shape, weight, bias, eps)
    if torch.is_autocast_enabled("cpu"):  # CUDA's casts to float32
        return F.layer_norm(input.float(), shape, weight, bias, eps)
    result: Tensor = _Forward.apply(_norm, input, weight, bias, shape, eps)
    return result


def _norm(input: Tensor, weight: Tensor | None, bias: Tensor | None, shape: list[int], eps: float) -> Any:
    y, mean, rstd = torch.native_layer_norm(input, shape, weight, bias, eps)
    return y, (input, weight, bias, mean.float(), rstd.float())


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **rest: Any,
) -> Tensor:
    if query.device.type != "cpu" or query.dtype == torch.float64:
        return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, **rest)
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (tensor.to(torch.get_autocast_dtype("cpu")) for tensor in (query, key, value))
    result: Tensor = _Forward.apply(_fused, query, key, value, attn_mask, is_causal, rest)
    return result


def _fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, rest: dict[str, Any]
) -> Any:
    y = F.scaled_dot_product_attention(query, key, value, mask, 0.0, is_causal, **rest)
    length = query.shape[-2]
    if mask is not None or query.dtype == torch.float32:  # the memory-efficient kernel
        length = -(-length // 32) * 32
    if mask is not None and mask.dtype == torch.bool:
        mask = mask.to(query.dtype)
    logsumexp = query.new_empty((*query.shape[:-2], length), dtype=torch.float32)
    seed = [query.new_empty((), dtype=torch.int64) for _ in range(2)]  # and offset, of the random numbers
    return y, (query, key, value, y, mask, logsumexp, *seed)


class _Forward(torch.autograd.Function):
    """Runs `operation(*args)`, which returns an output and the tensors to save."""

    @staticmethod
    def forward(ctx: Any, operation: Callable[..., tuple[Tensor, tuple[Tensor | None, ...]]], *args: Any) -> Tensor:
        y, saved = operation(*args)
        ctx.save_for_backward(*saved)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError("accounting='cuda' counts what forward saves, and has no backward")

    @staticmethod
    def saved_by(operation: Callable[..., Any], *_: Any) -> SavedBy:
        """For the recorder of memory."""
        return SavedBy({_norm: "layer_norm", _fused: "scaled_dot_product_attention"}[operation])


SAVING_AS_CUDA: dict[Any, Callable[..., Any]] = {
    F.dropout: _dropout,
    torch.dropout: _torch_dropout,
    F.scaled_dot_product_attention: _attention,
    F.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
}
