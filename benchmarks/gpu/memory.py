"""python -m benchmarks.gpu.memory: what models keep for backward and their peaks, by the allocator and as accounted.

Each model runs on the device as it is and converted; weights are random. Rows, as JSON lines, for --out or in
benchmarks/results/<device>/gpu-memory.jsonl. implementation: the way; mode: the model; unit: B. what:

    kept, accounted     by `saved_bytes` on fake tensors "as CUDA keeps it": what the tables in docs/memory.md have
    kept, recorded      by `saved_bytes` of the run on the device
    kept, allocated     by the allocator: what it was asked for after forward, the results gone, and not before it
    peak, accounted     the most bytes of both passes, beside weights and inputs, on fake tensors
    peak, allocated     by the allocator
    kept by OPERATION, accounted or recorded    where the two differ by more than a hundredth of all that is kept

On a CPU, which counts as it runs, storages stand for the allocator; --quick makes the models tiny.
"""

from benchmarks.gpu import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("gpu.memory", lambda: parsers.gpu_memory(__doc__))

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.autograd.graph import get_gradient_edge

from benchmarks.clock import origin
from benchmarks.gpu.device import CountedBooks, books, settle
from benchmarks.gpu.ways import STOCK, TINY, Model, broken, loss, prepare
from benchmarks.options import device as device_of
from benchmarks.rows import Row, described_rows, record, summary
from kernels import KernelError, saved_bytes
from kernels.memory.saved import Saved, size
from kernels.memory.storages import tensors

PROG = "gpu.memory"
WAYS = parsers.MEMORY_WAYS
APART = 0.01  # of all that is kept, from which on an operation is listed
QUICK_WAYS, SEQ = (STOCK, "auto", "compress 4 bits"), 16  # of tiny models
ACCOUNTED, RECORDED, ALLOCATED = "accounted", "recorded", "allocated"


def models(
    asked: Sequence[str], ways: Sequence[str], device: torch.device, tiny: bool, failed: list[str]
) -> Iterator[list[Row]]:
    """The rows of each model; a way that fails is printed and put into `failed`, and the others are measured."""
    for name in asked:
        changed = TINY[name] if tiny else {}
        seq = SEQ if tiny and "max_position_embeddings" in changed else None
        model = Model(name, device, seq=seq, changed=changed)
        rows = []
        for way in ways:
            try:
                rows += _of_way(model, way, origin(device))
            except Exception as error:  # whatever stops one way must not stop the others
                failed.append(broken(PROG, f"{name}, {way}", error))
            settle(device)
        yield rows


def _of_way(subject: Model, way: str, where: dict[str, Any]) -> list[Row]:
    """The rows of a model by one way; none where it changes nothing."""
    model, args, kwargs = subject.built()
    if prepare(model, way, args, kwargs) is None:
        return []
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    recorded = saved_bytes(model, *args, fake=False, **kwargs)
    kept, peak = allocated(model, args, kwargs, subject.device)
    examples = {"batch": len(next(iter(tensors((args, kwargs)))))}
    del model, args, kwargs
    accounted, counted = accounts(subject, way)
    numbers = {
        f"kept, {ACCOUNTED}": accounted.total,
        f"kept, {RECORDED}": recorded.total,
        f"kept, {ALLOCATED}": kept,
        f"peak, {ACCOUNTED}": counted,
        f"peak, {ALLOCATED}": peak,
    }
    for operation, pair in apart(accounted, recorded).items():
        for by, value in zip((ACCOUNTED, RECORDED), pair, strict=True):
            numbers[f"kept by {operation}, {by}"] = value
    return [
        Row(what, way, subject.name, examples, dtype, "B", **where, **summary([float(value)]))
        for what, value in numbers.items()
    ]


def apart(accounted: Saved, recorded: Saved) -> dict[str, tuple[int, int]]:
    """By operation, both numbers where they differ by more than APART of what is kept."""
    first, second = accounted.by_operation(), recorded.by_operation()
    pairs = {name: (first.get(name, 0), second.get(name, 0)) for name in dict.fromkeys([*first, *second])}
    limit = APART * max(accounted.total, recorded.total)
    return {name: pair for name, pair in pairs.items() if abs(pair[0] - pair[1]) > limit}


def allocated(model: nn.Module, args: Any, kwargs: Any, device: torch.device) -> tuple[int, int]:
    """Bytes after forward, the results gone but for what backward needs of them; and the most during both passes."""
    loss(model(*args, **kwargs)).backward()  # libraries take workspaces at their first use, and kernels are compiled
    model.zero_grad(set_to_none=True)
    settle(device)
    with books(device) as counted:
        # Edges hold the graph; a custom function's grad_fn does not by itself, in torch 2.11.
        graph = [get_gradient_edge(tensor) for tensor in tensors(model(*args, **kwargs)) if tensor.requires_grad]
        kept = counted.grown()
    del graph
    settle(device)
    with books(device) as counted:
        loss(model(*args, **kwargs)).backward()
        peak = counted.most()
    return kept, peak


def accounts(subject: Model, way: str) -> tuple[Saved, int]:
    """What is kept and the peak by the accounting, on fake tensors."""
    accounting = "cuda" if subject.device.type == "cuda" else "as-run"
    fakes = FakeTensorMode()
    with fakes:
        model, args, kwargs = replace(subject, device=torch.device("cpu")).built()
    prepare(model, way, args, kwargs)
    saved = saved_bytes(model, *args, fake=True, accounting=accounting, **kwargs)
    with fakes, CountedBooks() as counted:
        loss(model(*args, **kwargs)).backward()
    return saved, counted.most()


def described(rows: Sequence[Row]) -> str:
    """A line for each way, to be shown while the rest runs."""
    lines = []
    for way in dict.fromkeys(row.implementation for row in rows):
        bytes_of = {row.what: row.median for row in rows if row.implementation == way}
        parts = [f"{what} {size(value)}" for what, value in bytes_of.items()]
        lines.append(f"{rows[0].mode}, {way}: {'; '.join(parts)}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.gpu_memory(__doc__, arguments)
    device = device_of(options.device)
    ways = [way for way in (QUICK_WAYS if options.quick else WAYS) if way not in options.without]
    failed: list[str] = []
    rows = described_rows(models(options.models, ways, device, options.quick, failed), described, options.out)
    record([("gpu-memory", rows)] if rows else [], options.out, options.quick)
    return command.GOOD if rows and not failed else command.BAD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main, (KernelError,)))
