"""Linear layers and convolutions that save a K-bit copy of their input.

The gradient of the input needs only the weight, and is exact; that of the weight is computed from the copy.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.approx_backprop.attached import attached_code
from kernels.approx_backprop.encoding import Encoded, Encoding, encode, restored
from kernels.approx_backprop.memory_layout import MemoryLayout
from kernels.autograd import once_differentiable
from kernels.errors import KernelError
from kernels.methods.compressed import Compressed
from kernels.methods.method import SavedBy
from kernels.torch_state import autocasts

CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
LINEAR = (nn.Linear, *CONVOLUTIONS)
ADDMM = "addmm"


class Convolution(NamedTuple):
    """The arguments of aten's convolution; tuples have an entry for each dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int


class Weighted(torch.autograd.Function):
    """linear(x, weight, bias), or a convolution, in dtype `narrow` if that is not None; and an anchor.

    With ADDMM for the convolution it computes transformers' Conv1D, a linear layer with a transposed weight.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        convolution: Convolution | str | None,
        narrow: torch.dtype | None,
        encoding: Encoding,
        *encoded: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.convolution, ctx.encoding, anchor = convolution, encoding, x.new_empty(0)
        ctx.sizes = None if bias is None else [*bias.shape]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(anchor, weight, *(encoded if ctx.needs_input_grad[1] else ()))
        if narrow is not None:
            x, weight = x.to(narrow), weight.to(narrow)
            bias = None if bias is None else bias.to(narrow)
        if convolution is None:
            y = F.linear(x, weight, bias)
        elif convolution == ADDMM:
            y = torch.addmm(bias, x.view(-1, x.shape[-1]), weight).view(*x.shape[:-1], -1)
        else:
            return torch.convolution(x, weight, bias, *convolution), anchor
        # y may be a view; nobody could change a view in place that is the result of an autograd.Function.
        return torch.ops.aten._unsafe_view(y, y.shape), anchor

    @staticmethod
    def saved_by(x: Tensor, weight: Tensor, bias: Any, convolution: Convolution | str | None, *_: Any) -> SavedBy:
        """For the recorder of memory."""
        return SavedBy("convolution" if isinstance(convolution, Convolution) else "linear", Compressed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        rest = (None,) * (3 + len(Encoded._fields))
        if grad is None:
            return None, None, None, *rest
        anchor, weight, *encoded = ctx.saved_tensors
        needs = list(ctx.needs_input_grad[:3])
        weight = weight.to(grad.dtype)
        if ctx.needs_input_grad[1]:
            x = restored(ctx.encoding, Encoded(*encoded)).to(grad.dtype)
        else:
            x = grad.new_empty(1).expand(ctx.encoding.layout.shape)  # its values are not read
        if ctx.convolution is None:
            gradients = _linear_backward(grad, x, weight, needs)
        elif ctx.convolution == ADDMM:
            dx, dweight, dbias = _linear_backward(grad, x, weight.T, needs)
            gradients = dx, None if dweight is None else dweight.T, dbias
        else:
            gradients = torch.ops.aten.convolution_backward(grad, x, weight, ctx.sizes, *ctx.convolution, needs)
        pairs = zip(gradients, needs, strict=True)
        return *(once_differentiable(gradient, anchor) if need else None for gradient, need in pairs), *rest


def _linear_backward(grad: Tensor, x: Tensor, weight: Tensor, needs: list[bool]) -> tuple[Tensor | None, ...]:
    rows = grad.flatten(0, -2)
    dx = grad @ weight if needs[0] else None
    dweight = rows.T @ x.flatten(0, -2) if needs[1] else None
    return dx, dweight, rows.sum(0) if needs[2] else None


def is_addmm(module: nn.Module) -> bool:
    """Whether it is transformers' Conv1D: GPT-2's linear layer, with a transposed weight."""
    return (type(module).__module__, type(module).__name__) == ("transformers.pytorch_utils", "Conv1D")


def convolution_of(module: nn.Module) -> Convolution | str | None:
    """The arguments of a linear module; ADDMM for Conv1D, None for nn.Linear. Raises KernelError for others."""
    if isinstance(module, nn.Linear):
        return None
    if not isinstance(module, LINEAR):
        return ADDMM
    dims = module.weight.dim() - 2
    if module.padding_mode != "zeros":
        raise KernelError(f"it pads by padding_mode={module.padding_mode!r}")
    padding = module.padding
    if padding == "valid":
        padding = (0,) * dims
    elif padding == "same":
        totals = [dilation * (size - 1) for dilation, size in zip(module.dilation, module.kernel_size, strict=True)]
        if any(total % 2 for total in totals):
            raise KernelError("it pads one side more than the other (padding='same')")
        padding = tuple(total // 2 for total in totals)
    return Convolution(module.stride, padding, module.dilation, module.transposed, module.output_padding, module.groups)


def weighted(module: nn.Module, x: Tensor, method: Compressed) -> Tensor:
    """The result of a module in LINEAR for x with a batch dimension; saves the code attached to x, or a new code."""
    weight, bias, kind = module.weight, module.bias, x.device.type
    convolution = convolution_of(module)
    layout = MemoryLayout.of(x) if isinstance(convolution, Convolution) else MemoryLayout.of_rows(x)
    code = attached_code(x, method)
    if code is not None and code.encoded.minimum is not None and not code.encoding.layout.separates(layout):
        code = None  # its groups mix features of this layer
    encoding, saved = Encoding(method, layout, x.dtype), (None,) * len(Encoded._fields)
    if code is not None:
        encoding, saved = code.encoding, code.encoded
    elif weight.requires_grad:
        encoding, saved = encode(x, method, layout)
    run = partial(Weighted.apply, x, weight, bias, convolution)
    if not autocasts(kind):
        return run(None, encoding, *saved)[0]
    narrow = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    with torch.autocast(kind, enabled=False):
        return run(torch.get_autocast_dtype(kind) if narrow else None, encoding, *saved)[0]
