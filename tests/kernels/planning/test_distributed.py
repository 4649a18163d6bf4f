"""Plans in two processes: made by the first, done by both, under DDP and FSDP2, in eager mode and compiled."""

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from actfit import Plan, compress, make_plan, options
from actfit.kernels.compression import private
from actfit.kernels.compression.crossing import Graph
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


def in_eager_mode(file: Path, wrapper: str, mesh: Any, x: Tensor) -> list[Tensor]:
    model, _ = text(2)
    compress(model, plan=file)
    return gradients(wrapped(model, wrapper, mesh, (Attending,)) if wrapper else model, x)


def compiled(file: Path, wrapper: str, mesh: Any, x: Tensor, graphs: list[Graph]) -> list[Tensor]:
    """DDP is around what is compiled; FSDP2 changes the model before."""
    torch.compiler.reset()
    model, _ = text(2)
    cut = options(plan=file)["custom_partitioner_fn"]
    if wrapper == "fsdp2":
        model = wrapped(model, wrapper, mesh, (Attending,))
    run = torch.compile(model, backend=private.interpreted(cut))
    result = gradients(wrapped(run, wrapper, mesh) if wrapper == "ddp" else run, x)
    graphs += cut.graphs
    return result


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
    graphs: list[Graph] = []
    errors: dict[str, Any] = {}
    eager_alone = mean(in_eager_mode(files[False], "", mesh, x))
    compiled_alone = mean(compiled(files[True], "", mesh, x, []))
    for wrapper in WRAPPERS:
        both = in_eager_mode(files[False], wrapper, mesh, x)
        errors[f"eager {wrapper}"] = off(both, eager_alone), off(eager_alone, exact), off(both, exact)
        both = compiled(files[True], wrapper, mesh, x, graphs)
        errors[f"compiled {wrapper}"] = off(both, compiled_alone), off(compiled_alone, exact), off(both, exact)
    bits = {row.form for graph in graphs for row in graph.crossings if row.site}
    planned = {"whole" if site.bits is None else f"{site.bits} bits" for site in Plan.load(files[True]).sites}
    return {"off": errors, "bits": (bits, planned)}


def test_both_do_what_the_first_planned(tmp_path: Path) -> None:
    results = of_two(__file__, tmp_path, 240)
    for way, (apart, error, of_both) in results["off"].items():
        assert 1e-3 < error < 0.5
        if way == "compiled fsdp2":  # each layer is compiled by itself, with the most bits that the plan has for one
            assert of_both < 1.5 * error  # other graphs save a few other tensors, with codes as fine
        else:  # the same codes in the same operations, summed in another order: rounding of float32, far below codes'
            assert apart < 1e-5
    bits, planned = results["bits"]
    assert len(bits) > 1
    assert bits <= planned


if __name__ == "__main__":
    main(worker)
