"""What crosses from forward to backward in a compiled model, in what form."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from kernels.compression.crossing import Crossing, Graph
from kernels.compression.partitioner import CodedPartitioner
from kernels.errors import KernelError
from kernels.memory.saved import like, size


@dataclass(frozen=True)
class Report:
    """The graphs of a compiled model; `str(report)` is a table of them, layers that are alike in one row."""

    graphs: tuple[Graph, ...]

    def __str__(self) -> str:
        if not self.graphs:
            return (
                "no graph was compiled in this process: the model did not train yet, or its code came from Inductor's "
                "cache, which has no report; TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 compiles it again"
            )
        return "\n\n".join("\n".join(_lines(number, graph)) for number, graph in enumerate(self.graphs, 1))


def report(compiled: Callable[..., Any]) -> Report:
    """What a compiled model or function saves for its backward pass.

    Parameters
    ----------
    compiled
        What torch.compile gave with `options(...)`, or a model some modules of which were compiled so.

    Raises
    ------
    KernelError
        If nothing of it was compiled with `options(...)`.
    """
    partitioners = dict.fromkeys(_partitioners(compiled))
    if not partitioners:
        raise KernelError(
            "compiled must be what torch.compile(model, options=compression.options(...)) gave, or a model with "
            f"modules compiled so, not a {type(compiled).__name__} without such options"
        )
    return Report(tuple(graph for partitioner in partitioners for graph in partitioner.graphs))


def _partitioners(compiled: Any) -> Iterator[Any]:
    """Of what is compiled, and of modules in it that are."""
    parts = [compiled, *compiled.modules()] if isinstance(compiled, nn.Module) else [compiled]
    for part in parts:
        for one in (part, getattr(part, "_compiled_call_impl", None), getattr(part, "forward", None)):
            config = getattr(one, "get_compiler_config", lambda: None)()
            partitioner = (config or {}).get("custom_partitioner_fn")
            if isinstance(partitioner, CodedPartitioner):
                yield partitioner


def _lines(number: int, graph: Graph) -> Iterator[str]:
    ratio = f", {graph.before / graph.after:.1f} times less" if graph.after else ""
    yield f"graph {number}: {size(graph.after)} cross into backward in place of {size(graph.before)}{ratio}"
    groups: dict[tuple[str, ...], list[Crossing]] = {}
    for one in graph.crossings:
        groups.setdefault((like(one.module), one.operation, one.dtype, one.form, one.reason), []).append(one)
    rows = [
        (
            module or "the model",
            operation,
            dtype,
            f"{form}: {reason}" if reason else form,
            str(len(ones)),
            size(sum(one.before for one in ones)),
            size(sum(one.after for one in ones)),
        )
        for (module, operation, dtype, form, reason), ones in groups.items()
    ]
    header = ("module", "operation", "dtype", "form", "tensors", "before", "after")
    widths = [max(len(row[place]) for row in [header, *rows]) for place in range(len(header))]
    for row in [header, *rows]:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
