"""ActNN (Chen et al. 2021), the baseline of the FewBit paper, for one activation.

The input x is saved with `bits` an element: each GROUP in memory order is rounded stochastically to 2^bits even places
from its minimum to its maximum, so that the mean is x; both are saved too, in x's dtype. Backward takes f' at the
rounded x: unbiased in x, but not in f'(x), as f' is not linear.

FewBit's text scales by 2^bits, which makes 2^bits + 1 codes, one too many for so many bits; here as in ActNN it is
2^bits - 1. Left out: ActNN's compression of linear layers, convolutions and norms, and its adaptive bits.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit.kernels.engine.planes import pack, unpack

GROUP = 256  # elements
FORWARD = {"gelu": F.gelu, "silu": F.silu}
BACKWARD = {"gelu": torch.ops.aten.gelu_backward, "silu": torch.ops.aten.silu_backward}


def quantise(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Bit planes, uint8 [bits, ceil(n/8)], and each group's minimum and maximum, [2, ceil(n/GROUP)] in x's dtype.

    Draws from torch's generator.
    """
    flat = x.reshape(-1)
    groups = F.pad(flat, (0, -flat.numel() % GROUP)).view(-1, GROUP)
    groups.view(-1)[flat.numel() :] = flat[-1:]  # padding must not widen the last group's range
    ranges = torch.stack(torch.aminmax(groups, dim=1))
    minimum, maximum = ranges.float()[:, :, None]
    scale = (maximum - minimum) / ((1 << bits) - 1)
    # Where all of a group are equal, scale is 0 and any code will do.
    places = (groups.float() - minimum) / torch.where(scale > 0, scale, 1)
    codes = (places + torch.rand_like(places)).floor().clamp(0, (1 << bits) - 1)
    return pack(codes.to(torch.uint8).view(-1)[: flat.numel()], bits), ranges


def restore(planes: Tensor, ranges: Tensor, shape: torch.Size) -> Tensor:
    """x as it was saved, in the dtype of `ranges`."""
    count = shape.numel()
    codes = F.pad(unpack(planes, count).float(), (0, -count % GROUP)).view(-1, GROUP)
    minimum, maximum = ranges.float()[:, :, None]
    values = minimum + codes * ((maximum - minimum) / ((1 << len(planes)) - 1))
    return values.view(-1)[:count].view(shape).to(ranges.dtype)


class SavesCodes(torch.autograd.Function):
    """f(x) for gelu or silu; saves the result of `quantise`."""

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
    """An activation that saves its input with `bits` an element."""

    def __init__(self, name: str, bits: int) -> None:
        super().__init__()
        self.name, self.bits = name, bits

    def forward(self, x: Tensor) -> Tensor:
        """f(x), in x's shape and dtype."""
        result: Tensor = SavesCodes.apply(x, self.name, self.bits)
        return result

    def extra_repr(self) -> str:
        return f"{self.name}, bits={self.bits}"
