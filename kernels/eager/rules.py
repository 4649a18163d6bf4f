"""Functions with their own rules for running or recomputing them."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from kernels.eager.tensors import group_of
from kernels.eager.values import Constant
from kernels.methods.every_tensor import MIN_GROUP

# Backends of attention, and whether each is enabled now.
BACKENDS = {
    SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled,
    SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled,
    SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled,
    SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled,
}


COMPOSED = torch.float64, torch.float32, torch.bfloat16, torch.float16  # types of such an RMS norm


def dropout_scale(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """The factor of elements that a dropout leaves; the probability is every dropout's second argument."""
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    return 1 / (1 - p) if 0 <= p < 1 else 0.0


def dropped(x: Tensor, noise: Tensor, scale: float) -> Tensor:
    """The result of a dropout of x; the noise is a mask, or already 0 or the scale."""
    return x * noise * scale if noise.dtype == torch.bool else x * noise


def _without_check(function: Any) -> Any:
    """A copy of a function of torch.nn.functional whose inner calls, not itself, go to function modes."""
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    names = {**function.__globals__, **dict.fromkeys(checks, lambda *_: False)}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


# Functions of several calls that save tensors, and copies of them whose calls the mode sees.
OPENED = {
    getattr(F, name): _without_check(getattr(F, name))
    for name in ("multi_head_attention_forward", "linear_cross_entropy")
    if hasattr(F, name)  # the second is not in every release of PyTorch
}


def opened(function: Any, args: Any, kwargs: Any) -> Any:
    """A function of the same results whose calls go to function modes, where that saves less; or None."""
    if function in (F.rms_norm, torch.rms_norm):
        return _rms_norm if _is_composed(*args, **kwargs) else None
    return OPENED.get(function)


def _is_composed(
    input: Any = None, normalized_shape: Any = None, weight: Any = None, eps: Any = None, *_: Any, **others: Any
) -> bool:
    """Whether PyTorch composes this RMS norm of other operations, as it does on a CPU, and they keep less one by one.

    Bad arguments are left for PyTorch to refuse, and inputs with gaps for it to put in order. Where rows share groups
    of codes, what is coded should be the normalised rows, as their scales may differ.
    """
    if not (_is_dense(input) and isinstance(normalized_shape, tuple | list) and isinstance(eps, float | int | None)):
        return False
    shape, row = tuple(normalized_shape), input.shape[-len(normalized_shape) :].numel()
    if not shape or any(type(size) is not int for size in shape) or shape != tuple(input.shape[-len(shape) :]):
        return False
    has_weight = _is_dense(weight) and tuple(weight.shape) == shape
    return (weight is None or has_weight) and not others and row >= MIN_GROUP and row % group_of(input) == 0


def _is_dense(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in COMPOSED and x.device.type == "cpu" and x.is_contiguous()


def _rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """As PyTorch composes it, bit for bit. Run as a single call, it would also keep a code of the normalised input."""
    wide = input.float() if input.dtype.itemsize == 2 else input
    dims = tuple(range(-len(normalized_shape), 0))
    squares = wide.pow(2).mean(dims, keepdim=True)
    result = wide * torch.rsqrt(squares + (torch.finfo(wide.dtype).eps if eps is None else eps))
    return (result if weight is None else result * weight).to(input.dtype)


def attention_again(function: Any, mask: Constant | None, args: Any, kwargs: Any) -> Tensor:
    """Attention whose backward runs it again on decoded q, k and v.

    PyTorch's backward would use the log-sum-exp of exact logits, so a logit's error would be a factor in a probability.

    Parameters
    ----------
    function, args, kwargs
        The call.
    mask
        Saved whole, as an infinity would spoil the codes of its group; or None.
    """
    q, k, v, coded, dropout, causal = attention_arguments(*args, **kwargs)
    rest = {name: kwargs[name] for name in ("scale", "enable_gqa") if name in kwargs}

    def run(q: Tensor, k: Tensor, v: Tensor, coded: Tensor | None = None) -> Any:
        with sdpa_kernel(enabled) if enabled else nullcontext():  # other backends may be enabled when backward runs
            return function(q, k, v, coded if mask is None else mask.checked(), dropout, causal, **rest)

    enabled = [kind for kind, is_enabled in BACKENDS.items() if is_enabled()]
    saved = (q, k, v, coded) if mask is None else (q, k, v)  # checkpoint passes positional arguments to hooks
    result: Tensor = checkpoint(run, *saved, use_reentrant=False, preserve_rng_state=dropout > 0)
    return result


def attention_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, float, bool]:
    """The positional arguments of attention."""
    return query, key, value, attn_mask, dropout_p, is_causal


def batch_norm(
    x: Tensor, mean: Any, var: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Tensor:
    """Batch norm in training that does not update the running statistics again."""
    return F.batch_norm(x, None, None, weight, bias, True, 0.0, eps)
