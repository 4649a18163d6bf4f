"""The cases of `benchmarks.forward_ad`: chains as people write them, the blocks around them, and the methods."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.baselines.checkpointed import Checkpointed
from kernels.forward_ad import wrap

METHODS = ("plain", "nested", "checkpoint", "compiled")
# Inductor's decision what to save, without its code generation: it needs no C++ compiler, and does not copy a
# convolution's weights and input to channels-last, which would count.
PARTITIONER = "aot_eager_decomp_partition"
WIDTH, CHANNELS, SIDE = 512, 32, 32
ELEMENTS = 1 << 17  # of the tensor between the layers, if bytes are counted


def newgelu(x: Tensor) -> Tensor:
    """GELU by tanh, as in GPT2's original code."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


CHAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "swish": lambda x: x * torch.sigmoid(x),
    "swish by division": lambda x: x / (1 + torch.exp(-x)),
    "mish": lambda x: x * torch.tanh(F.softplus(x)),
    "mish by log": lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))),
    "newgelu": newgelu,
    "newgelu, dropout": lambda x: F.dropout(newgelu(x), 0.1),
    "gelu by erf": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "snake": lambda x: x + torch.sin(2 * x) ** 2 / 2,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "torch's gelu": lambda x: F.gelu(x, approximate="tanh"),
    "affine": lambda x: (x * 2 + 1) / 3,
}


class WrittenActivation(nn.Module):
    """An activation written out in torch's operations, by its name in CHAINS."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return CHAINS[self.name](x)


def alone(chain: nn.Module) -> nn.Module:
    return chain


def linear(chain: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), chain, nn.Linear(WIDTH, WIDTH))


def normed(given: int, width: int = CHANNELS) -> nn.Sequential:
    """A 3×3 convolution and its BatchNorm."""
    return nn.Sequential(nn.Conv2d(given, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))


def convolution(chain: nn.Module) -> nn.Module:
    return nn.Sequential(*normed(CHANNELS), chain, nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False))


Block = Callable[[nn.Module], nn.Module]
# By name: the layers around a chain, and the input's shape, whose first number grows with the elements.
BLOCKS: dict[str, tuple[Block, tuple[int, ...]]] = {
    "chain": (alone, (1, WIDTH)),
    "linear – chain – linear": (linear, (1, WIDTH)),
    "conv – BatchNorm – chain – conv": (convolution, (1, CHANNELS, SIDE, SIDE)),
}


def shape(block: str, elements: int) -> tuple[int, ...]:
    """The shape of a block's input, with `elements` elements in the chain's input."""
    first, *rest = BLOCKS[block][1]
    return (first * elements // math.prod(rest), *rest)


def run_by(method: str, block: str, chain: str, backend: str = PARTITIONER) -> nn.Module:
    """A new block in training mode, run by one of METHODS. Checkpointing applies to the chain only."""
    inner: nn.Module = WrittenActivation(chain)
    whole = BLOCKS[block][0](Checkpointed(inner) if method == "checkpoint" else inner)
    if method == "compiled":
        torch.compiler.reset()  # else torch's limit of recompilations makes it run eager
        compiled: nn.Module = torch.compile(whole, backend=backend, dynamic=False)
        return compiled
    return wrap(whole) if method == "nested" else whole
