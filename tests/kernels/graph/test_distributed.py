"""Two processes train by DDP and FSDP2: gradients are those of stock in the same wrapper, bit for bit."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from actfit import compress
from tests.kernels.graph.nets import Block, batch, net
from tests.kernels.processes import main, needs_distributed, of_two, whole, wrapped

WAYS = ("ddp", "fsdp of layers", "fsdp of blocks")
pytestmark = [needs_distributed, pytest.mark.slow]


def trained(way: str, order: str, rank: int, mesh: Any) -> tuple[list[Tensor], list[str], int]:
    """All weights after three steps by AdamW; what ran as stock, and how many graphs were captured."""
    model: nn.Module = net(dropout=0.2)
    handle = compress(model) if order == "before" else None
    kept = model
    model = wrapped(model, way.split()[0], mesh, (Block,) if "blocks" in way else (nn.Linear,))
    if order == "after":
        handle = compress(kept)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(3):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(batch(96).chunk(2)[rank]).square().mean().backward()
        optimizer.step()
    weights = [whole(parameter) for parameter in model.parameters()]
    return weights, list(handle.stock.items()) if handle else [], len(handle.report.graphs) if handle else 0


def worker(rank: int, mesh: Any) -> dict[tuple[str, str], Any]:
    return {(way, order): trained(way, order, rank, mesh) for way in WAYS for order in ("never", "before", "after")}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return of_two(__file__, tmp_path_factory.mktemp("processes"), 240)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", ["before", "after"])
def test_two_processes(results: Any, way: str, order: str) -> None:
    weights, stock, graphs = results[way, order]
    assert not stock
    assert graphs
    assert all(torch.equal(a, b) for a, b in zip(weights, results[way, "never"][0], strict=True))


if __name__ == "__main__":
    main(worker)
