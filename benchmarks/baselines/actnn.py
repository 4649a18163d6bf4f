"""ActNN (Chen et al. 2021), the baseline of the FewBit paper, for one activation.

The input x is kept, by `bits` an element: each GROUP in the order of memory is put on 2^bits even places from its least
to its largest, by stochastic rounding, so that its mean is x; both ends are kept too, in x's dtype. Backward takes f'
there: unbiased in x, but not in f'(x), as f' is no straight line.

FewBit's text scales by 2^bits, which makes 2^bits + 1 codes, more than so many bits tell; ActNN's own 2^bits - 1 is
taken here. Not taken from ActNN: its compression of linear layers, convolutions and norms, and bits that adapt.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.engine.planes import pack, unpack

GROUP = 256  # elements
FORWARD = {"gelu": F.gelu, "silu": F.silu}
BACKWARD = {"gelu": torch.ops.aten.gelu_backward, "silu": torch.ops.aten.silu_backward}


def quantise(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Bit planes, uint8 [bits, ceil(n/8)], and the ends of each group, [2, ceil(n/GROUP)] in x's dtype.

    Draws from torch's own generator.
    """
    flat = x.reshape(-1)
    groups = F.pad(flat, (0, -flat.numel() % GROUP)).view(-1, GROUP)
    groups.view(-1)[flat.numel() :] = flat[-1:]  # what fills the last group must not widen it
    ends = torch.stack(torch.aminmax(groups, dim=1))
    low, high = ends.float()[:, :, None]
    step = (high - low) / ((1 << bits) - 1)
    # Where all of a group are equal, step is 0 and any code will do.
    places = (groups.float() - low) / torch.where(step > 0, step, 1)
    codes = (places + torch.rand_like(places)).floor().clamp(0, (1 << bits) - 1)
    return pack(codes.to(torch.uint8).view(-1)[: flat.numel()], bits), ends


def restore(planes: Tensor, ends: Tensor, shape: torch.Size) -> Tensor:
    """x as it was kept, in the dtype of `ends`."""
    count = shape.numel()
    codes = F.pad(unpack(planes, count).float(), (0, -count % GROUP)).view(-1, GROUP)
    low, high = ends.float()[:, :, None]
    values = low + codes * ((high - low) / ((1 << len(planes)) - 1))
    return values.view(-1)[:count].view(shape).to(ends.dtype)


class Remember(torch.autograd.Function):
    """f(x) of a name, gelu or silu; keeps what `quantise` gives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, bits: int) -> Tensor:
        ctx.save_for_backward(*quantise(x, bits))
        ctx.name, ctx.shape = name, x.shape
        return FORWARD[name](x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x = restore(*ctx.saved_tensors, ctx.shape)
        return BACKWARD[ctx.name](grad, x), None, None


class ActNN(nn.Module):
    """An activation that keeps its input by `bits` an element."""

    def __init__(self, name: str, bits: int) -> None:
        super().__init__()
        self.name, self.bits = name, bits

    def forward(self, x: Tensor) -> Tensor:
        """f(x), in x's shape and dtype."""
        result: Tensor = Remember.apply(x, self.name, self.bits)
        return result

    def extra_repr(self) -> str:
        return f"{self.name}, bits={self.bits}"
