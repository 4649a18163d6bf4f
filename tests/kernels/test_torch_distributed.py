"""Two processes, each with half of the batch, train as one process with all of it does."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import kernels

ROOT = Path(__file__).parents[2]
METHODS = {
    "stock": {"method": "stock"},
    "invact": {"method": "invact"},
    "fewbit": {"method": "fewbit", "bits": 3},
    "forward-ad": {"method": "forward-ad"},
    "invact-precision-bit": {"method": "invact-precision-bit"},
}
WRAPPERS = ("ddp", "fsdp2")
STEPS, RATE = 2, 0.5

# Sums are taken in another order: some hundred additions of float64 numbers below ten, in each of two steps.
ROUNDING = 1000 * torch.finfo(torch.float64).eps


def model(method: str) -> nn.Module:
    """The same in every process."""
    torch.manual_seed(0)
    layers = (nn.Linear(6, 20), kernels.GELU(**METHODS[method]), nn.Linear(20, 20), kernels.SiLU(**METHODS[method]))
    return nn.Sequential(*layers, nn.Linear(20, 3)).double()


def batch() -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(1)
    return (torch.randn(16, size, generator=made, dtype=torch.float64) for size in (6, 3))


def train(net: nn.Module, x: Tensor, target: Tensor) -> list[Tensor]:
    """The loss before each step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    losses = []
    for _ in range(STEPS):
        loss = (net(x) - target).square().mean()
        losses.append(loss.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def worker(rank: int, folder: Path) -> None:
    """What each of the two processes does; the first leaves its results in `folder`."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    mine = [half.chunk(2)[rank] for half in batch()]
    results = {}
    for method in METHODS:
        for wrapper in WRAPPERS:
            net = model(method)
            if wrapper == "ddp":
                net = DistributedDataParallel(net)
            else:
                for layer in net:
                    if isinstance(layer, nn.Linear):
                        fully_shard(layer, mesh=mesh)
                fully_shard(net, mesh=mesh)
            losses = torch.stack(train(net, *mine))
            distributed.all_reduce(losses)
            parameters = [getattr(one, "full_tensor", lambda one=one: one)() for one in net.parameters()]
            results[wrapper, method] = losses / 2, [one.detach() for one in parameters]
    if rank == 0:
        torch.save(results, folder / "results.pt")
    distributed.destroy_process_group()
if __name__ == "__main__":
    worker(int(sys.argv[1]), Path(sys.argv[2]))
