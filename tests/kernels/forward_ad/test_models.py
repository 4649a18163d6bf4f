"""Nested forward AD in whole models, in float32: the same loss bit for bit, and the same gradients to rounding."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.forward_ad import unwrap, wrap

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")
CHANNELS, WORDS = 8, 64


class Mish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tanh(torch.log(1 + torch.exp(x)))


class Residual(nn.Module):
    """Two convolutions with norms, and a way around them."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False) for _ in range(2)]
        norms = [nn.BatchNorm2d(CHANNELS) for _ in range(2)]
        self.inside = nn.Sequential(convolutions[0], norms[0], Mish(), convolutions[1], norms[1])
        self.act = Mish()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.inside(x) + x)
        return y


def resnet() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    net = nn.Sequential(nn.Conv2d(3, CHANNELS, 3), Residual(), Residual(), nn.Flatten(), nn.LazyLinear(10))
    x, target = torch.randn(4, 3, 16, 16), torch.randint(10, (4,))
    net(x)  # so that the last layer knows its width
    return net, lambda net: F.cross_entropy(net(x), target)


def gpt2() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    sizes = {"n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": WORDS}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"), 0)
    words = torch.randint(WORDS, (4, 32))
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, **ends, use_cache=False)
    ), lambda net: net(input_ids=words, labels=words).loss


def bert() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = transformers.BertConfig(**sizes, vocab_size=WORDS, hidden_act="gelu_new", max_position_embeddings=32)
    words, target = torch.randint(WORDS, (4, 32)), torch.randint(2, (4,))
    return transformers.BertForSequenceClassification(config), lambda net: net(input_ids=words, labels=target).loss


@pytest.mark.filterwarnings("ignore:.*loss_type")
@pytest.mark.parametrize("build", [resnet, gpt2, bert], ids=lambda build: build.__name__)
def test_a_model_trains_as_before(build: Callable[[], tuple[nn.Module, Callable[[nn.Module], Tensor]]]) -> None:
    """Dropout included. The gradient, as one vector, moves by less than 1e-6 of its length: 8 units of float32."""
    torch.manual_seed(0)
    net, loss_of = build()
    net.train()
    found: list[tuple[Tensor, Tensor]] = []
    for nested in (False, True):
        net.zero_grad()
        wrap(net, min_numel=1) if nested else None
        torch.manual_seed(1)
        loss = loss_of(net)
        loss.backward()
        gradients = [one.grad.flatten() for one in net.parameters() if one.grad is not None]
        found.append((loss.detach(), torch.cat(gradients)))
    unwrap(net)
    (plain, before), (nested_loss, after) = found
    assert torch.equal(plain, nested_loss)
    assert 0 < (after - before).norm() <= 1e-6 * before.norm()
