"""Two processes train language models with their loss in chunks, by DDP and FSDP2, as stock does."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from actfit import compress
from tests.kernels.processes import main, needs_distributed, of_two, whole, wrapped

pytestmark = [needs_distributed, pytest.mark.slow]
CLASSES, WIDTH = 2048, 16


class Model(nn.Module):
    """Gives a loss and logits, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2)])

    def forward(self, words: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.blocks(self.embedding(words)))
        return {"loss": F.cross_entropy(logits.flatten(0, 1).float(), words.flatten()), "logits": logits}


def trained(way: str, chunked: bool, rank: int, mesh: Any) -> tuple[list[Tensor], str]:
    """All weights after two steps, and what the handle tells."""
    model: nn.Module = Model()
    handle = compress(model, chunked_loss=chunked)
    model = wrapped(model, way, mesh, (nn.Embedding,))
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    for step in range(2):
        words = torch.randint(CLASSES, (2, 4, 80), generator=torch.Generator().manual_seed(step))[rank]
        optimizer.zero_grad()
        model(words)["loss"].backward()
        optimizer.step()
    return [whole(parameter) for parameter in model.parameters()], str(handle)


def worker(rank: int, mesh: Any) -> dict[tuple[str, bool], Any]:
    return {(way, chunked): trained(way, chunked, rank, mesh) for way in ("ddp", "fsdp") for chunked in (False, True)}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return of_two(__file__, tmp_path_factory.mktemp("processes"), 240)


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_weights_are_those_of_stock(results: Any, way: str) -> None:
    stock, _ = results[way, False]
    ours, told = results[way, True]
    assert "head: its cross-entropy is computed in chunks of 128 rows" in told
    for expected, made in zip(stock, ours, strict=True):
        torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-6)  # sums of 320 rows in float32


if __name__ == "__main__":
    main(worker)
