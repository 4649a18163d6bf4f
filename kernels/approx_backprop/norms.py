"""Norms: batch norm, layer norm and RMS norm, which save a copy of their normalised input.

With a = (x - mean) / std, over a batch's channel or over a row, y = gain * a + bias and g the gradient of y:

    dgain = sum(g * a),  dbias = sum(g),  dx = (g * gain - mean(g * gain) - a * mean(a * g * gain)) / std

So of dx one term of three is approximate, and dbias is exact (Chakrabarti and Moseley, eq. 7 and 8). RMS norm has no
mean, neither of x nor of the gradient.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kernels import private
from kernels.approx_backprop.attached import AttachedCode, Origin, attach_code
from kernels.approx_backprop.encoding import Encoded, Encoding, affordable, by_paper, fixed, grouped, marked, restored
from kernels.approx_backprop.memory_layout import MemoryLayout
from kernels.approx_backprop.written_norms import WrittenNorm
from kernels.autograd import once_differentiable
from kernels.engine.elements import computed
from kernels.methods.compressed import Compressed
from kernels.methods.method import SavedBy

BATCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
ROWS = (nn.LayerNorm, nn.RMSNorm)


class BatchNorm(torch.autograd.Function):
    """Training's batch norm: the result, an anchor, and the codes."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gain: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
        encoding: Encoding,
    ) -> tuple[Tensor, ...]:
        # The same kernel as F.batch_norm, but this function returns the intermediate mean and invstd, too.
        y, mean, invstd, _, _ = private.batch_norm_impl_index(
            x, gain, bias, running_mean, running_var, True, momentum, eps, torch.backends.cudnn.enabled
        )
        match encoding.method.scheme:
            case "robust":
                codes: tuple[Tensor, ...] = (fixed(x, mean, invstd, encoding.method, encoding.layout),)
            case "paper":
                codes = (by_paper(y, gain, bias, encoding.method, encoding.layout),)
            case "group":
                codes = grouped((x - _channels(mean, x)) * _channels(invstd, x), encoding.method, encoding.layout)
            case _:
                a = (x - _channels(mean, x)) * _channels(invstd, x)
                codes = (marked(a.to(x.dtype), y),)
        ctx.encoding, anchor = encoding, x.new_empty(0)
        ctx.mark_non_differentiable(*codes)
        ctx.set_materialize_grads(False)
        read = bias if encoding.method.scheme == "paper" else None  # shifts the codes of "paper"
        ctx.save_for_backward(gain, read, anchor, invstd, *codes)
        return y, anchor, *codes

    @staticmethod
    def saved_by(*_: Any) -> SavedBy:
        """For the recorder of memory."""
        return SavedBy("batch_norm", Compressed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 8
        gain, bias, anchor, invstd, *codes = ctx.saved_tensors
        a = restored(ctx.encoding, _encoded(codes, gain, bias), normal=True)
        # With 1/std as part of the gain, the kernel's dx for a normalised input is the dx of x. The mean of a is
        # subtracted so that dx sums to 0, as it must: a bias before the norm has no gradient.
        scale = invstd if gain is None else invstd * gain
        mean = a.mean([0, *range(2, a.dim())], dtype=invstd.dtype)
        ones = torch.ones_like(invstd)
        needs = [bool(need) for need in ctx.needs_input_grad[:3]]
        gradients = torch.ops.aten.native_batch_norm_backward(
            grad, a, scale.to(invstd.dtype), None, None, mean, ones, True, 0.0, needs
        )
        used = (gradient if need else None for gradient, need in zip(gradients, needs, strict=True))
        return *(None if gradient is None else once_differentiable(gradient, anchor) for gradient in used), *(None,) * 5


def _summed(x: Tensor, over: list[int]) -> Tensor:
    """The sum over these dimensions. For an empty list x itself, where torch would sum over all."""
    return x.sum(over) if over else x


class RowNorm(torch.autograd.Function):
    """A norm of the last dimensions; `run` computes the result. centred: whether the mean is subtracted."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gain: Tensor | None,
        bias: Tensor | None,
        dims: list[int],
        eps: float | None,
        centred: bool,
        run: Callable[[Tensor], Tensor],
        encoding: Encoding,
    ) -> tuple[Tensor, ...]:
        wide = x.to(computed(x.dtype))
        over = list(range(-len(dims), 0))
        mean = wide.mean(over, keepdim=True) if centred else 0
        wide = wide - mean
        added = torch.finfo(wide.dtype).eps if eps is None else eps  # as in F.rms_norm
        invstd = torch.rsqrt(wide.square().mean(over, keepdim=True) + added)
        a, y = wide * invstd, run(x)
        codes = (marked(a.to(x.dtype), y),) if encoding.method.exact else grouped(a, encoding.method, encoding.layout)
        ctx.dims, ctx.centered, ctx.encoding, anchor = dims, centred, encoding, x.new_empty(0)
        ctx.mark_non_differentiable(*codes)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gain, anchor, invstd, *codes)
        return y, anchor, *codes

    @staticmethod
    def saved_by(x: Tensor, gain: Any, bias: Any, dims: Any, eps: Any, centred: bool, *_: Any) -> SavedBy:
        """For the recorder of memory."""
        return SavedBy("layer_norm" if centred else "rms_norm", Compressed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 8
        gain, anchor, invstd, *codes = ctx.saved_tensors
        wide = computed(grad.dtype)
        g, a = grad.to(wide), restored(ctx.encoding, _encoded(codes), normal=True).to(wide)
        over = list(range(-len(ctx.dims), 0))
        a = a - a.mean(over, keepdim=True) if ctx.centered else a  # as in BatchNorm
        rows = list(range(grad.dim() - len(ctx.dims)))
        needs_x, needs_gain, needs_bias = ctx.needs_input_grad[:3]
        dgain = _summed(g * a, rows) if needs_gain else None
        dbias = _summed(g, rows) if needs_bias else None
        dx = None
        if needs_x:
            dx = g if gain is None else g * gain
            along_a = a * (dx * a).mean(over, keepdim=True)
            dx = (dx - dx.mean(over, keepdim=True) - along_a if ctx.centered else dx - along_a) * invstd
        gradients = (dx, dgain, dbias)
        return (
            *(None if gradient is None else once_differentiable(gradient, anchor) for gradient in gradients),
            None,
            None,
            None,
            None,
            None,
        )


def _encoded(codes: list[Tensor], gain: Tensor | None = None, bias: Tensor | None = None) -> Encoded:
    """Of what a norm has saved."""
    minimum, scale = codes[1:] if len(codes) == 3 else (None, None)
    return Encoded(codes[0], minimum, scale, gain, bias)


def _channels(vector: Tensor, x: Tensor) -> Tensor:
    """Along the second dimension of x."""
    return vector.view(1, -1, *[1] * (x.dim() - 2))


def batch_norm(module: nn.Module, x: Tensor, method: Compressed, origin: Origin) -> Tensor:
    """What `module` gives in training for x [n, channels, ...], with a code attached; updates the averages."""
    module._check_input_dim(x)
    if x.numel() // x.shape[1] < 2:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.size()}")
    momentum, tracks = module.momentum or 0.0, module.track_running_stats
    if tracks and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        if module.momentum is None:  # the mean of all batches
            momentum = 1.0 / float(module.num_batches_tracked)
    running = (module.running_mean, module.running_var) if tracks else (None, None)
    layout = MemoryLayout.of(x)
    method = affordable(x, method, layout) if method.scheme == "group" else method
    encoding = Encoding(method, layout, x.dtype, normed=True, inner=layout.inner)
    y, _, *codes = BatchNorm.apply(x, module.weight, module.bias, *running, momentum, module.eps, encoding)
    return attach_code(y, AttachedCode(encoding, _encoded(codes, *_read(module.weight, module.bias)), origin))


def row_norm(
    module: nn.Module,
    x: Tensor,
    method: Compressed,
    origin: Origin,
    written: WrittenNorm | None,
    run: Callable[[Tensor], Tensor],
) -> Tensor:
    """run(x) for x [..., *shape of the weight], with a code attached; `module` is in ROWS or described by `written`."""
    if written is None:
        weight, bias, centred = module.weight, getattr(module, "bias", None), isinstance(module, nn.LayerNorm)
        dims, eps = [*module.normalized_shape], module.eps
    else:
        (weight, bias), centred, dims, eps = written.parameters(module), written.centred, [x.shape[-1]], written.eps
    layout = MemoryLayout.of_rows(x, len(dims))
    method = affordable(x, method, layout)  # by groups: in transformers, ranges differ by feature
    encoding = Encoding(method, layout, x.dtype, normed=True)
    y, _, *codes = RowNorm.apply(x, weight, bias, dims, eps, centred, run, encoding)
    return attach_code(y, AttachedCode(encoding, _encoded(codes, *_read(weight, bias)), origin))


def _read(*parameters: Tensor | None) -> list[Tensor | None]:
    """Detached parameters for other layers' backward; copies where FSDP may have freed this module's own by then."""
    shared = torch.distributed.is_available() and torch.distributed.is_initialized()
    return [
        None if parameter is None else parameter.detach().clone() if shared else parameter.detach()
        for parameter in parameters
    ]
