"""Plans in two processes: made by the first, done by both, under DDP and FSDP2, in eager mode and compiled."""

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from actfit import Plan, compress, make_plan
from tests.kernels.planning.nets import Attending, text
from tests.kernels.processes import main, needs_distributed, of_two, whole, wrapped

pytestmark = [pytest.mark.slow, needs_distributed]

SHARES = {False: 0.15, True: 0.08}  # in eager mode, and compiled
WRAPPERS = ("ddp", "fsdp2")


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    model(x).square().mean().backward()
    return [whole(weight.grad) for weight in model.parameters() if weight.grad is not None]


def mean(tensors: list[Tensor]) -> list[Tensor]:
    """Over both processes."""
    for tensor in tensors:
        distributed.all_reduce(tensor)
    return [tensor / 2 for tensor in tensors]


def off(approximate: list[Tensor], exact: list[Tensor]) -> float:
    """||g' - g|| / ||g||."""
    gradient, other = (torch.cat([part.flatten() for part in parts]) for parts in (approximate, exact))
    return float((gradient - other).norm() / other.norm())


def planned(file: Path, wrapper: str, mesh: Any, x: Tensor) -> tuple[list[Tensor], set[str]]:
    """The gradient, and the forms of the tensors that the plan is for."""
    model, _ = text(2)
    handle = compress(model, plan=file)
    found = gradients(wrapped(model, wrapper, mesh, (Attending,)) if wrapper else model, x)
    return found, {row.form for graph in handle.report.graphs for row in graph.crossings if row.site}


def worker(rank: int, mesh: Any) -> dict[str, Any]:
    """How far what two processes do is from what each does alone, and that from the exact gradient."""
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")  # Dynamo looks at it
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated")  # Inductor has some
    folder = Path(sys.argv[2])
    files = {False: folder / "eager.json", True: folder / "compiled.json"}
    model, (batch,) = text(2)
    if rank == 0:
        for is_compiled, file in files.items():
            make_plan(model, batch, SHARES[is_compiled], compiled=is_compiled, goal="error").save(file)
    distributed.barrier()
    x = torch.randn(batch.shape, generator=torch.Generator().manual_seed(1 + rank))
    exact = mean(gradients(model, x))
    errors: dict[str, Any] = {}
    for name, file in (("eager", files[False]), ("compiled", files[True])):
        alone = mean(planned(file, "", mesh, x)[0])
        for wrapper in WRAPPERS:
            both, bits = planned(file, wrapper, mesh, x)
            errors[f"{name} {wrapper}"] = off(both, alone), off(alone, exact)
    of_plan = {"whole" if site.bits is None else f"{site.bits} bits" for site in Plan.load(files[True]).sites}
    return {"off": errors, "bits": (bits, of_plan)}


def test_both_do_what_the_first_planned(tmp_path: Path) -> None:
    """The same codes in the same operations, summed in another order: rounding of float32, far below that of codes."""
    results = of_two(__file__, tmp_path, 240)
    for apart, error in results["off"].values():
        assert 1e-3 < error < 0.5
        assert apart < 1e-5
    bits, planned = results["bits"]
    assert len(bits) > 1
    assert bits <= planned


if __name__ == "__main__":
    main(worker)
