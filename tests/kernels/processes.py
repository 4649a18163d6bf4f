"""Runs a test's own file as a script in two processes, and loads the first one's results."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn

ROOT = Path(__file__).parents[2]
needs_distributed = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch has no torch.distributed"
)


def of_two(file: str, folder: Path, seconds: float) -> Any:
    """Runs `python file rank folder` for ranks 0 and 1 at once; the result of `worker` in rank 0."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", file, str(rank), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=seconds)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    return torch.load(folder / "results.pt")


def main(worker: Callable[[int, Any], Any]) -> NoReturn:
    """One of the two processes: `worker` gets its rank and the mesh of both."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    results = worker(rank, init_device_mesh("cpu", (2,)))
    if rank == 0:
        torch.save(results, folder / "results.pt")
    distributed.destroy_process_group()
    sys.stdout.flush()
    # Skip Python's shutdown: a wrapped model holds the group, whose threads free tensors then, and a thread that
    # takes the interpreter's lock during shutdown aborts the process.
    os._exit(0)


def wrapped(net: nn.Module, wrapper: str, mesh: Any, layers: tuple[type, ...] = (nn.Linear,)) -> nn.Module:
    """The network wrapped by DDP for "ddp", else by FSDP2, which shards each layer of these types individually."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    if wrapper == "ddp":
        return DistributedDataParallel(net)
    for layer in [module for module in net.modules() if isinstance(module, layers)]:
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded."""
    full: Tensor = getattr(tensor, "full_tensor", lambda: tensor)()
    return full.detach()
