"""How often backward decodes: once for neighbouring products that read the same, else between any two products."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from actfit.kernels.compression import splice
from actfit.kernels.compression.decoding import _Copies
from tests.kernels.compression.cuts import Step, same
from tests.kernels.compression.graphs import partitioner

pytestmark = pytest.mark.usefixtures("small_and_seeded")


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, 16)).transpose(1, 2)


class Attention(nn.Module):
    """Attention on a normalised input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(32, 32), nn.LayerNorm(32)
        self.query, self.key, self.value, self.last = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x))
        heads = F.scaled_dot_product_attention(*(split(part(h)) for part in (self.query, self.key, self.value)))
        result: Tensor = self.last(heads.transpose(1, 2).flatten(2))
        return result


def decodings(function: Callable[[Tensor], Tensor]) -> Counter[str]:
    """By the tensor, how often backward decodes it."""
    counts: Counter[str] = Counter()

    def count(_: fx.Graph, decoded: dict[fx.Node, fx.Node]) -> None:
        counts.update(node.name.partition("_decoded")[0] for node in decoded)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splice, "work_in_parts", count)
        Step(function, partitioner(bits=4)).run(torch.randn(4, 16, 32)).sum().backward()
    return counts


def test_what_neighbouring_products_and_attention_read_is_decoded_once() -> None:
    """The norm's input again for its own gradient, after the products that make the gradient of its output."""
    counts = decodings(Attention())
    assert sorted(counts.values()) == [1, 1, 1, 2]


def test_what_a_product_reads_no_function_of_is_decoded_again() -> None:
    """GELU's input would be held whole while the product between GELU and its derivative runs."""
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    assert list(decodings(model).values()) == [2]


def test_gradients_are_those_of_decoding_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(Attention(), partitioner(bits=4))
    step.run(torch.randn(4, 16, 32)).sum().backward()
    held = step.again(partitioner(bits=4))
    monkeypatch.setattr(_Copies, "_read_by", lambda copies, product: {})
    assert same(step.again(partitioner(bits=4)), held)
