"""Two processes train compressed models by DDP and FSDP2 as stock does in the same wrapper, bit for bit but in chunks
of a loss; and what torch.compile cuts with codes; and activations of ours, as one process with the whole batch."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

import actfit
from actfit import compress
from tests.kernels.compression import models
from tests.kernels.compression.cuts import allowed
from tests.kernels.compression.graphs import code_from, compiled, error, partitioner, stock
from tests.kernels.graph.nets import Block, batch, net
from tests.kernels.processes import main, needs_distributed, of_two, whole, wrapped
from tests.kernels.saved import METHODS

WAYS = {"ddp": (), "fsdp of layers": (nn.Linear,), "fsdp of blocks": (Block,)}
CLASSES, WIDTH, BITS = 2048, 16, 8
pytestmark = [needs_distributed, pytest.mark.slow]


def trained(way: str, order: str, rank: int, mesh: Any) -> tuple[list[Tensor], list[str], int]:
    """All weights after three steps by AdamW; what ran as stock, and how many graphs were captured."""
    model: nn.Module = net(dropout=0.2)
    handle = compress(model) if order == "before" else None
    kept = model
    model = wrapped(model, way.split()[0], mesh, WAYS[way])
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


class Language(nn.Module):
    """Gives a loss and logits, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2)])

    def forward(self, words: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.blocks(self.embedding(words)))
        return {"loss": F.cross_entropy(logits.flatten(0, 1).float(), words.flatten()), "logits": logits}


def in_chunks(way: str, chunked: bool, rank: int, mesh: Any) -> tuple[list[Tensor], str]:
    """All weights after two steps, and what the handle tells."""
    model: nn.Module = Language()
    handle = compress(model, chunked_loss=chunked)
    model = wrapped(model, way, mesh, (nn.Embedding,))
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    for step in range(2):
        words = torch.randint(CLASSES, (2, 4, 80), generator=torch.Generator().manual_seed(step))[rank]
        optimizer.zero_grad()
        model(words)["loss"].backward()
        optimizer.step()
    return [whole(parameter) for parameter in model.parameters()], str(handle)


class Layers(nn.Module):
    """A class of its own: Dynamo does not compile an nn.Sequential under FSDP2."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = models.mlp()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


def cut(way: str, rank: int, mesh: Any) -> tuple[float, float, int, bool]:
    """The error of gradients and its bound, the number of coded inputs, and whether both processes agree."""
    results, coded = [], partitioner(bits=BITS)
    for partition in (stock, coded):
        torch.manual_seed(0)
        model = wrapped(nn.Sequential(Layers(), Layers()), way, mesh, (Layers,))
        torch.manual_seed(1 + rank)
        compiled(model, partition)(torch.randn(64, 32)).square().mean().backward()
        results.append([whole(weight.grad) for weight in model.parameters()])
    mine = torch.cat([gradient.flatten() for gradient in results[1]])
    both = [torch.empty_like(mine) for _ in range(2)]
    distributed.all_gather(both, mine)
    inputs = sum(row.operation == "an input" for graph in coded.graphs for row in graph.crossings)
    return error(results[1], results[0]), allowed(coded.graphs, BITS), inputs, torch.equal(*both)


def by_method(method: str, rank: int | None = None, mesh: Any = None, way: str = "") -> list[Tensor]:
    """The loss before each of two steps, and weights: of the whole batch, or of a process's half of it in float64."""
    torch.manual_seed(0)
    options = {"stock": {"method": "stock"}, **METHODS}[method]
    first, second = actfit.nn.GELU(**options), actfit.nn.SiLU(**options)
    net: nn.Module = nn.Sequential(nn.Linear(6, 20), first, nn.Linear(20, 20), second, nn.Linear(20, 3)).double()
    x, target = torch.randn(16, 6, dtype=torch.float64), torch.randn(16, 3, dtype=torch.float64)
    if rank is not None:
        net, x, target = wrapped(net, way, mesh), x.chunk(2)[rank], target.chunk(2)[rank]
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.5), []
    for _ in range(2):
        loss = (net(x) - target).square().mean()
        losses.append(loss.detach().clone())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank is not None:
        for loss in losses:
            distributed.all_reduce(loss)
            loss /= 2
    return [*losses, *(whole(parameter) for parameter in net.parameters())]


def worker(rank: int, mesh: Any) -> dict[Any, Any]:
    made: dict[Any, Any] = {
        (way, order): trained(way, order, rank, mesh) for way in WAYS for order in ("never", "before", "after")
    }
    for way in ("ddp", "fsdp"):
        made |= {(way, chunked): in_chunks(way, chunked, rank, mesh) for chunked in (False, True)}
        made |= {(way, method): by_method(method, rank, mesh, way) for method in ("stock", *METHODS)}
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")  # Dynamo looks at it
    code_from(64, pytest.MonkeyPatch())
    return made | {(way, "cut"): cut(way, rank, mesh) for way in ("ddp", "fsdp")}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return of_two(__file__, tmp_path_factory.mktemp("processes"), 240)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", ["before", "after"])
def test_two_processes(results: Any, way: str, order: str) -> None:
    weights, ran_as_stock, graphs = results[way, order]
    assert not ran_as_stock
    assert graphs
    assert all(torch.equal(a, b) for a, b in zip(weights, results[way, "never"][0], strict=True))


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_loss_in_chunks(results: Any, way: str) -> None:
    expected, _ = results[way, False]
    ours, told = results[way, True]
    assert "head: its cross-entropy is computed in chunks of 128 rows" in told
    for exact, made in zip(expected, ours, strict=True):
        torch.testing.assert_close(made, exact, rtol=1e-5, atol=1e-6)  # sums of 320 rows in float32


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_coded_partitions(results: Any, way: str) -> None:
    off, bound, inputs, same = results[way, "cut"]
    assert 0 < off < bound
    assert inputs <= 1  # the first layer's output, and no weights
    assert same


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
@pytest.mark.parametrize("method", ["stock", *METHODS])
def test_activations_of_ours(results: Any, method: str, way: str) -> None:
    """Sums are taken in another order: some hundred additions of float64 numbers below ten, in each of two steps."""
    alone = by_method(method)
    assert alone[1] < alone[0]
    for made, exact in zip(results[way, method], alone, strict=True):
        assert ((made - exact).abs() <= 1000 * torch.finfo(torch.float64).eps).all()


if __name__ == "__main__":
    main(worker)
