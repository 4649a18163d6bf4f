"""Codes in the graphs of a block."""

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from actfit import compress, saved_bytes
from actfit.kernels.compression.forms import Groups
from actfit.kernels.compression.layout import GroupLayout, layout_of
from actfit.kernels.graph.codes import decode, encode
from actfit.kernels.graph.splice import decoded_by_plain_operations


class Softmax(nn.Module):
    """Written out; the gradient of its last layer is the sum of what was saved of probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.logits, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        z = self.logits(x)
        result: Tensor = self.last((z - z.logsumexp(-1, keepdim=True)).exp())
        return result


def test_small_probabilities_have_codes_of_their_roots() -> None:
    """One is .7, the others .002 and .008: steps of 4 bits are .05, those of roots .05 (2 √.008 + .05) or less."""
    model, x = Softmax(), torch.randn(64, 64)
    with torch.no_grad():
        model.logits.weight.zero_()
        model.logits.bias[:] = torch.tensor([0.0, 1.5] * 32)
        model.logits.bias[0] = 6.0
    p = model.logits.bias.softmax(0).detach()
    handle = compress(model, bits=4)
    model(x).sum().backward()
    assert "4 bits of roots" in str(handle)
    assert isinstance(model.last.weight.grad, Tensor)
    got = model.last.weight.grad[0] / len(x)
    step = (p.max().sqrt() - p.min().sqrt()) / 15 * 1.01  # bfloat16 rounds it up
    assert ((got - p).abs() <= step * (p.sqrt() + step / 4)).all()
    assert (got - p)[1:].abs().max() < 0.2 * p[1:].max()


class Crossed(nn.Module):
    """A block that is given what all blocks are given, as an encoder's output, beside its own input."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        result: Tensor = self.last(x + self.key(memory).tanh())
        return result


class Decoder(nn.Module):
    """Blocks that share a tensor; it may be changed in place before each of them."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.first, self.factor = nn.Linear(64, 64), factor
        self.blocks = nn.ModuleList(Crossed() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        memory = self.first(x)
        for block in self.blocks:
            memory = memory if self.factor == 1 else memory.mul_(self.factor)
            x = block(x, memory)
        return x


@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_share_the_codes_of_what_all_are_given(bits: int) -> None:
    model, x = Decoder(), torch.randn(256, 64)
    compress(model, bits=bits)
    code = x.numel() * bits // 8 + x.numel() // 64 * 4
    tanh, sums = 4, 4
    assert saved_bytes(model, x).total == (tanh + sums) * code + code


def test_codes_of_a_tensor_that_was_changed_are_not_shared() -> None:
    torch.manual_seed(0)
    model, x = Decoder(factor=-0.7), torch.randn(256, 64)
    weight = model.blocks[-1].key.weight  # type: ignore[union-attr]
    (exact,) = torch.autograd.grad(model(x).sum(), weight)
    compress(model, bits=8)
    (got,) = torch.autograd.grad(model(x).sum(), weight)
    assert (got - exact).norm() < 2.0**-7 * exact.norm()


@pytest.mark.parametrize("of_roots", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("transposed", [False, True])
def test_plain_operations_decode_8_bits_as_our_kernels_do(transposed: bool, dtype: torch.dtype, of_roots: bool) -> None:
    x = (50_000 * torch.rand(4, 32, 64)).to(dtype)
    x = x.transpose(0, 1) if transposed else x
    layout = layout_of(x)
    assert isinstance(layout, GroupLayout)
    order, group = layout
    codes = encode(x, order, group, 8, False, of_roots, False)
    graph, mode = fx.Graph(), FakeTensorMode()
    given = [graph.placeholder(f"code_{place}") for place in range(3)]
    output = graph.output(None)
    for node, code in zip(given, codes, strict=True):
        node.meta["val"] = mode.from_tensor(code)
    output.args = (decoded_by_plain_operations(given, mode.from_tensor(x), Groups(8, layout, of_roots), output),)
    decoded = fx.GraphModule({}, graph)(*codes)
    assert decoded.stride() == x.stride()
    assert torch.equal(decoded, decode(*codes, None, x.shape, order, group, dtype, of_roots))
