"""Blocks of a transformer, as each rival and each of our methods computes them.

MLP: Linear, GELU, Linear. Gated: silu(a) * b, or gelu(a) * b, of two Linears, then a third. Blocks made with the same
seed have the same weights.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import actfit
from actfit.kernels.activation import activation
from benchmarks.baselines.checkpointed import Checkpointed

EAGER, COMPILE, RECOMPUTING, LIGER = "eager", "compile", "compile with the flag", "liger"
CHECKPOINT, LATE = "checkpoint", "checkpoint from the activation on"
STOCK = (EAGER, COMPILE, RECOMPUTING, CHECKPOINT, LATE)
ACT_LINEAR = "ActLinear"  # an activation fused with the Linear after it
COMPILED = " compiled"  # at the end of the name of a method of ours
MLP, SWIGLU, GEGLU = "MLP with GELU", "SwiGLU", "GeGLU"
WIDER = 4  # times: the hidden layer over the input

Gate = Callable[[Tensor, Tensor], Tensor]

# By method: the replacement of the activation.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "invact": partial(activation, "gelu", method="invact"),
    "fewbit, 3 bits": partial(activation, "gelu", method="fewbit", bits=3),
    "fewbit, 1 bit": partial(activation, "gelu", method="fewbit", bits=1),
}
GATES: dict[str, dict[str, Gate]] = {
    SWIGLU: {
        "exact": actfit.functional.swiglu,
        "fewbit, 3 bits": partial(actfit.functional.swiglu, method="fewbit", bits=3),
    },
    GEGLU: {
        "exact": actfit.functional.geglu,
        "fewbit, 3 bits": partial(actfit.functional.geglu, method="fewbit", bits=3),
    },
}


def _silu_gate(a: Tensor, b: Tensor) -> Tensor:
    return F.silu(a) * b


def _gelu_gate(a: Tensor, b: Tensor) -> Tensor:
    return F.gelu(a) * b


def _gelu_tanh_gate(a: Tensor, b: Tensor) -> Tensor:
    return F.gelu(a, approximate="tanh") * b


STOCK_GATES: dict[str, Gate] = {SWIGLU: _silu_gate, GEGLU: _gelu_gate}


class Mlp(nn.Module):
    """Linear, an activation, Linear."""

    def __init__(self, width: int, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.act = nn.Linear(width, WIDER * width), nn.Linear(WIDER * width, width), act

    def begin(self, x: Tensor) -> tuple[Tensor]:
        """The layer before the activation."""
        return (self.first(x),)

    def end(self, hidden: Tensor) -> Tensor:
        """The part from the activation on."""
        result: Tensor = self.last(self.act(hidden))
        return result

    def forward(self, x: Tensor) -> Tensor:
        return self.end(*self.begin(x))


class Gated(nn.Module):
    """A gate of two Linears, and a Linear."""

    def __init__(self, width: int, gate: Gate) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(width, WIDER * width, bias=False) for _ in range(2))
        self.last, self.gate = nn.Linear(WIDER * width, width, bias=False), gate

    def begin(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The layers before the gate."""
        return self.first(x), self.second(x)

    def end(self, a: Tensor, b: Tensor) -> Tensor:
        """The part from the gate on."""
        result: Tensor = self.last(self.gate(a, b))
        return result

    def forward(self, x: Tensor) -> Tensor:
        return self.end(*self.begin(x))


class Late(nn.Module):
    """A block; backward runs the part from the activation on again."""

    def __init__(self, inner: Mlp | Gated) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.inner.end, *self.inner.begin(x), use_reentrant=False)
        return result


class Fused(Mlp):
    """The activation fused with the last Linear, with the same weights."""

    def __init__(self, width: int) -> None:
        super().__init__(width, F.gelu)
        self.last = actfit.nn.ActLinear("gelu", self.last)

    def end(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.last(hidden)
        return result


@dataclass(frozen=True)
class Block:
    """A kind of block by one implementation."""

    kind: str
    implementation: str
    width: int

    def module(self) -> Mlp | Gated:
        """The implementation's layers in eager mode; their weights come from torch's generator."""
        if self.implementation == ACT_LINEAR:
            return Fused(self.width)
        if self.implementation == LIGER:
            return Gated(self.width, liger(self.kind))
        name = self.implementation.removesuffix(COMPILED)
        if self.kind == MLP:
            return Mlp(self.width, ACTIVATIONS.get(name, F.gelu))
        return Gated(self.width, GATES[self.kind].get(name, STOCK_GATES[self.kind]))

    def exact(self) -> nn.Module:
        """The same function by stock layers in eager mode; liger's GELU is the tanh approximation."""
        if self.implementation == LIGER and self.kind == GEGLU:
            return Gated(self.width, _gelu_tanh_gate)
        return Block(self.kind, EAGER, self.width).module()

    def run_by(self, module: Mlp | Gated) -> nn.Module:
        """The module as the implementation runs it. Each compiled module has its own backend: torch's cache ignores the
        flag, and would reuse code that was compiled for another."""
        if self.compiled:
            compiled: nn.Module = torch.compile(module, dynamic=False, backend=self._compile)
            return compiled
        if self.implementation == LATE:
            return Late(module)
        return Checkpointed(module) if self.implementation == CHECKPOINT else module

    @property
    def compiled(self) -> bool:
        """Whether it uses torch.compile."""
        return self.implementation in (COMPILE, RECOMPUTING) or self.implementation.endswith(COMPILED)

    def _compile(self, graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        """Inductor; for RECOMPUTING with the flag that lets it compute an activation again."""
        from torch._inductor.compile_fx import compile_fx  # takes seconds, and only compiled blocks need it

        keep = self.implementation != RECOMPUTING
        with torch._functorch.config.patch(ban_recompute_materialized_backward=keep):
            return compile_fx(graph, inputs)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Rivals:
    """The implementations of each kind of block on a device."""

    device: torch.device
    compiles: bool
    kinds: tuple[str, ...] = field(default=(MLP, SWIGLU, GEGLU))

    def blocks(self, width: int) -> Iterator[Block]:
        """All blocks of this width, eager first."""
        for kind in self.kinds:
            names = [*STOCK]
            if kind != MLP and self.device.type == "cuda" and find_spec("liger_kernel") is not None:
                names.append(LIGER)
            ours = [*ACTIVATIONS, ACT_LINEAR] if kind == MLP else [*GATES[kind]]
            for name in (*names, *ours, ours[0] + COMPILED):
                block = Block(kind, name, width)
                if self.compiles or not block.compiled:
                    yield block


def liger(kind: str) -> Gate:
    """Liger-Kernel's gate; it needs a GPU, and its GELU is the tanh approximation."""
    from liger_kernel.ops.geglu import LigerGELUMulFunction  # an optional rival
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    gate: Gate = (LigerSiLUMulFunction if kind == SWIGLU else LigerGELUMulFunction).apply
    return gate
