"""With exact codes every gradient is stock's: attention in all of PyTorch's forms."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.eager import coder, encoded
from tests.kernels.eager.nets import Net, assert_same, converted, gradients

pytestmark = [
    pytest.mark.usefixtures("exact_codes"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
]
CAUSAL = torch.ones(16, 16, dtype=torch.bool).tril()
ADDED = torch.zeros(16, 16).masked_fill(~CAUSAL, -torch.inf)


def attention(
    query_heads: int = 4, key_heads: int = 4, repeat: bool = False, named: bool = False, **options: Any
) -> Net:
    """A layer that calls torch's function, with a mask if it is given one."""

    def forward(net: Net, x: Tensor, mask: Any = None) -> Tensor:
        q, k, v = (net[place](x).unflatten(-1, (-1, 8)).transpose(1, 2) for place in range(3))
        if repeat:
            k, v = (projected.repeat_interleave(query_heads // key_heads, 1) for projected in (k, v))
        masked = {"attn_mask": mask(x) if callable(mask) else mask}
        given = ({"value": v, "key": k, "query": q}, ()) if named else ({}, (q, k, v))
        y = F.scaled_dot_product_attention(*given[1], **given[0], **masked, **options)
        return net[3](y.transpose(1, 2).flatten(2))

    return Net(
        forward, nn.Linear(32, 8 * query_heads), *(nn.Linear(32, 8 * key_heads) for _ in range(2)), nn.Linear(32, 32)
    )


FUNCTIONS = {
    "plain": attention(),
    "named": attention(named=True),
    "causal": attention(is_causal=True),
    "scaled": attention(scale=0.3),
    "dropout": attention(dropout_p=0.3),
    "dropout, named": attention(dropout_p=0.3, named=True),
    "grouped": attention(key_heads=2, enable_gqa=True),
    "repeated": attention(key_heads=2, repeat=True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_function(name: str) -> None:
    assert_same(FUNCTIONS[name], torch.randn(2, 16, 32))


MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "bool": lambda x: CAUSAL,
    "added": lambda x: ADDED,
    "made of activations": lambda x: torch.where(x[:, None, :, :16] > 3.0, -torch.inf, 0.0),
    "bools of activations": lambda x: x[:, None, :, :16] < 3.0,
}


@pytest.mark.parametrize("named", [False, True], ids=["", "named"])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str, named: bool) -> None:
    """Masks contain -inf, which has no code."""

    def forward(net: Net, x: Tensor) -> Tensor:
        h = net[0](x)
        return net[1](h, MASKS[mask](h.detach()))

    assert_same(Net(forward, nn.Linear(32, 32), attention(named=named)), torch.randn(2, 16, 32))


@pytest.mark.parametrize("named", [False, True], ids=["", "named"])
def test_a_mask_that_wants_a_gradient(named: bool) -> None:
    net = Net(lambda net, x: net[0](x, net[1](x)[:, None] + ADDED), attention(named=named), nn.Linear(32, 16))
    assert_same(net, torch.randn(2, 16, 32))
    assert_same(attention(named=named), torch.randn(2, 16, 32), torch.randn(4, 16, 16, requires_grad=True))


def test_a_mask_with_infinities_by_real_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is saved whole: one infinity would spoil all numbers of its group of codes."""
    monkeypatch.setattr(coder, "Groups", encoded.Groups)
    net = Net(lambda net, x: net[0](x, (net[1](x)[:, None] + ADDED)), attention(), nn.Linear(32, 16))
    for gradient in gradients(converted(net), torch.randn(16, 16, 32))[1]:
        assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("need_weights", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["", "batch first"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_multi_head_attention(need_weights: bool, batch_first: bool, dropout: float) -> None:
    layer = nn.MultiheadAttention(32, 4, dropout, batch_first=batch_first)
    net = Net(lambda net, x: net[1](x, *[net[0](x)] * 2, need_weights=need_weights), nn.Linear(32, 32), layer)
    assert_same(net, torch.randn(2, 16, 32), kernels_differ=True)


def test_multi_head_attention_of_other_widths_and_with_masks() -> None:
    x, y = torch.randn(2, 16, 32), torch.randn(2, 20, 16)
    crossed = Net(
        lambda net, x, y: net[0](x, y, y)[0], nn.MultiheadAttention(32, 4, kdim=16, vdim=16, batch_first=True)
    )
    assert_same(crossed, x, y, kernels_differ=True)
    layer = nn.MultiheadAttention(32, 4, batch_first=True)
    masked = Net(lambda net, x: net[0](x, x, x, attn_mask=~CAUSAL, need_weights=False)[0], layer)
    assert_same(masked, x, kernels_differ=True)
    padded = torch.zeros(2, 16, dtype=torch.bool)
    padded[1, 12:] = True
    assert_same(Net(lambda net, x: net[0](x, x, x, key_padding_mask=padded)[0], layer), x, kernels_differ=True)


LAYERS = {
    "encoder": nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True),
    "encoder, norm first": nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu", norm_first=True),
    "decoder": nn.TransformerDecoderLayer(32, 4, 64, 0.1),
}


@pytest.mark.parametrize("training", [True, False], ids=["", "eval"])
@pytest.mark.parametrize("name", LAYERS)
def test_transformer_layers(name: str, training: bool) -> None:
    given = [torch.randn(2, 16, 32)] * (2 if name == "decoder" else 1)
    assert_same(LAYERS[name].train(training), *given, kernels_differ=True)


def test_written_out() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        q, k, v = (net[place](x).unflatten(-1, (4, 8)).transpose(1, 2) for place in range(3))
        weights = F.dropout(torch.softmax((q @ k.mT / 8**0.5).masked_fill(~CAUSAL, -torch.inf), -1), 0.1)
        return net[3]((weights @ v).transpose(1, 2).reshape(2, 16, 32))

    assert_same(Net(forward, *(nn.Linear(32, 32) for _ in range(4))), torch.randn(2, 16, 32))
