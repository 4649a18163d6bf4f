"""Random small modules: exact bit for bit, and with bits the same forward and the same Nones."""

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import KernelError, compress
from tests.kernels.graph.conformance import equal, outcome

pytestmark = pytest.mark.slow

WIDTH, ROWS = 16, 24
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "rms norm": lambda: nn.RMSNorm(WIDTH),
    "dropout": lambda: nn.Dropout(0.3),
    "conv": lambda: nn.Conv1d(1, 1, 3, padding=1),
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "leaky relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "tanh": torch.tanh,
    "softmax": lambda x: x.softmax(-1),
    "max pool": lambda x: F.max_pool1d(x[:, None], 3, 1, 1)[:, 0],
    "mean": lambda x: x - x.mean(0, keepdim=True),
    "broadcast": lambda x: x * x[:1].expand_as(x),
    "view": lambda x: x.view(-1, 4, WIDTH // 4).transpose(1, 2).reshape(x.shape),
    "halves": lambda x: torch.cat([part * (k + 1) for k, part in enumerate(x.chunk(2, 1))], 1),
    "in place": lambda x: (x * 2).add_(x).relu_(),
    "abs": lambda x: (x.abs() + 1).sqrt(),
    "where": lambda x: torch.where(x > 0.2, x * x, -x),
    "no grad": lambda x: x * x.detach().exp().clamp(max=3),
}
JOINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "max": torch.maximum,
    "product": lambda a, b: (a @ b.t()).softmax(-1) @ b,
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None, None], b[None, None], a[None, None])[0, 0],
}

Operation = tuple[str, int, int]  # its name, and which earlier values it takes
OPERATIONS = st.lists(
    st.tuples(st.sampled_from([*LAYERS, *FUNCTIONS, *JOINS]), st.integers(0, 9), st.integers(0, 9)),
    min_size=2,
    max_size=9,
)


class Drawn(nn.Module):
    """A directed graph of operations: each takes earlier values; two of the last are returned."""

    def __init__(self, operations: list[Operation]) -> None:
        super().__init__()
        self.operations = operations
        self.layers = nn.ModuleDict(
            {str(k): LAYERS[name]() for k, (name, *_) in enumerate(operations) if name in LAYERS}
        )
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = [x, self.first(x)]
        for place, (name, first, second) in enumerate(self.operations):
            a, b = made[-1 - first % len(made)], made[-1 - second % len(made)]
            if name in LAYERS:
                layer = self.layers[str(place)]
                made.append(layer(a[:, None])[:, 0] if name == "conv" else layer(a))
            else:
                made.append(FUNCTIONS[name](a) if name in FUNCTIONS else JOINS[name](a, b))
        return made[-1], made[-2]


def unread(operations: list[Operation]) -> set[str]:
    """Names of operations whose results nothing reads."""
    read = {len(operations), len(operations) + 1}  # the last two of all values, which begin with two others
    for place in reversed(range(len(operations))):
        name, first, second = operations[place]
        if place + 2 in read:
            read |= {place + 1 - k % (place + 2) for k in ((first, second) if name in JOINS else (first,))}
    return {name for place, (name, *_) in enumerate(operations) if place + 2 not in read}


class Blocks(nn.Module):
    """Two blocks, and a loss on the last one's first result and, on request, on the first one's second."""

    def __init__(self, operations: list[Operation], both: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Drawn(operations) for _ in range(2))
        self.both = both

    def forward(self, x: Tensor) -> Tensor:
        first, side = self.blocks[0](x)
        last, _ = self.blocks[1](first)
        made: Tensor = last.square().mean() + (side.square().mean() if self.both else 0)
        return made


@settings(max_examples=12, deadline=None)
@given(OPERATIONS, st.booleans(), st.booleans())
def test_exact_bit_for_bit_and_with_bits(operations: list[Operation], both: bool, needs: bool) -> None:
    assume("dropout" not in unread(operations))  # it draws no random numbers in a graph, and so later ones differ
    torch.manual_seed(0)
    model, x = Blocks(operations, both), torch.randn(ROWS, WIDTH, requires_grad=needs)
    assume(model(x).requires_grad)
    expected = outcome(copy.deepcopy(model), x)
    for bits in (None, 8):
        ours = copy.deepcopy(model)
        handle = compress(ours, bits=bits)
        got = outcome(ours, x)
        assert equal(got.results, expected.results)
        assert [a is None for a in got.gradients] == [b is None for b in expected.gradients]
        assert bits or expected.results[0].isnan() or equal(got.gradients, expected.gradients)
        assert not handle.stock


def twice(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The gradient of the squared norm of the gradient."""
    wanted = [x, *model.parameters()]
    gradients = torch.autograd.grad(model(x), wanted, create_graph=True, allow_unused=True)
    norm = torch.stack([gradient.square().sum() for gradient in gradients if gradient is not None]).sum()
    again = torch.autograd.grad(norm, wanted, allow_unused=True)
    return [torch.zeros_like(p) if gradient is None else gradient for p, gradient in zip(wanted, again, strict=True)]


@settings(max_examples=12, deadline=None)
@given(OPERATIONS, st.booleans())
def test_gradients_of_gradients_are_those_of_stock_or_refused(operations: list[Operation], both: bool) -> None:
    """In float64: other orders of sums are all that may differ, by far less than this bound."""
    assume(not {"dropout", "batch norm", "attention"} & {name for name, *_ in operations})
    torch.manual_seed(0)
    model, x = Blocks(operations, both).double(), torch.randn(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    try:
        expected = twice(model, x)
    except RuntimeError:  # nothing of the gradient depends on anything
        assume(False)
    ours = copy.deepcopy(model)
    compress(ours)
    try:
        got = twice(ours, x)
    except KernelError:  # of which tests/kernels/graph/test_twice.py has the reasons
        return
    off, size = (
        torch.cat([part.flatten() for part in parts]).norm()
        for parts in ([a - b for a, b in zip(got, expected, strict=True)], expected)
    )
    assert off <= 1e-10 * size
