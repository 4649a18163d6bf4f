"""Codes in the graphs of a block."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor, fx, nn

from actfit import compress, saved_bytes
from actfit.kernels.compression.forms import Groups
from actfit.kernels.compression.layout import GroupLayout, layout_of
from actfit.kernels.graph import splice
from actfit.kernels.graph.codes import decode, encode
from actfit.kernels.graph.plain import decoded, encoded


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


def test_inputs_that_blocks_may_share() -> None:
    """Not those that a residual changes; positions that are added to one, as in DETR, change nothing."""
    graph = fx.Graph()
    memory, positions, x = (graph.placeholder(name) for name in ("memory", "positions", "x"))
    placed = graph.call_function(torch.ops.aten.add.Tensor, (memory, positions))
    made = graph.call_function(
        torch.ops.aten.tanh.default, (graph.call_function(torch.ops.aten.mul.Tensor, (x, placed)),)
    )
    graph.output(graph.call_function(torch.ops.aten.add.Tensor, (x, made)))
    assert [splice._may_be_shared(node) for node in (memory, positions, x, made)] == [True, True, False, False]


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
@pytest.mark.parametrize("bits", [4, 8])
def test_plain_operations_code_as_our_kernels_do(
    bits: int, transposed: bool, dtype: torch.dtype, of_roots: bool
) -> None:
    x = (50_000 * torch.rand(4, 32, 64)).to(dtype)
    x[0, :3] = torch.tensor([0.0, 1e-7, 3e4]).to(dtype)[:, None]  # constant groups
    x[1, 0, 5] = torch.nan
    x[1, 1] *= 1e-44 if dtype == torch.float32 else 1e-4
    x = x.transpose(0, 1) if transposed else x
    layout = layout_of(x)
    assert isinstance(layout, GroupLayout)
    form, (order, group) = Groups(bits, layout, of_roots), layout
    plain, codes = encoded(x, form), encode(x, order, group, bits, False, of_roots, False)
    for made, known in zip(plain[1:], codes[1:], strict=True):
        assert torch.equal(made.isnan(), known.isnan())
        assert torch.equal(made[~made.isnan()].view(torch.int16), known[~known.isnan()].view(torch.int16))
    if bits == 8:  # any code is right beside a NaN
        numbers = ~codes[1].isnan().repeat_interleave(group)
        assert torch.equal(plain[0][numbers], codes[0][numbers])
    got = decoded(*plain, x, form)
    assert got.stride() == x.stride()
    expected = decode(*codes, None, x.shape, order, group, dtype, of_roots)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + cast(Tensor, self.down(nn.functional.silu(self.gate(x)) * self.up(x)))


@pytest.mark.parametrize("bits", [4, 8])
def test_inductor_makes_and_reads_codes_itself(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No operation of ours is left in its graphs, of which each is a call of Python."""
    called: list[str] = []
    let_cross = splice.let_cross

    def noted(*graphs: Any) -> None:
        called.extend(str(node.target) for graph in graphs[:2] for node in graph.graph.nodes)
        let_cross(*graphs)

    monkeypatch.setattr(splice, "let_cross", noted)
    model = nn.Sequential(*(Gated() for _ in range(2)))
    x = torch.randn(256, 64, requires_grad=True)
    (exact,) = torch.autograd.grad(model(x).sum(), x)
    handle = compress(model, bits=bits)
    (by_kernels,) = torch.autograd.grad(model(x).sum(), x)
    handle.remove()
    called.clear()
    compress(model, bits=bits, compiled=True)
    (got,) = torch.autograd.grad(model(x).sum(), x)
    assert any("mm" in name for name in called)
    assert not [name for name in called if "actfit" in name]
    # Another order of sums may change a code by one, if it lies between two: that is as far off as the other.
    error, expected = ((gradient - exact).norm() for gradient in (got, by_kernels))
    assert expected / 2 < error < 2 * expected
