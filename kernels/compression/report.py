"""What crosses from forward to backward in a compiled model, in what form."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from kernels.compression.crossing import Crossing, Graph
from kernels.compression.partitioner import CodedPartitioner
from kernels.errors import KernelError
from kernels.memory.saved import like, size

ERROR = "error: expected of normally distributed values, relative, in the root mean square"


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
        graphs = ["\n".join(_lines(number, graph)) for number, graph in enumerate(self.graphs, 1)]
        return "\n\n".join([*graphs, ERROR])


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
    partitioners = dict.fromkeys(config["custom_partitioner_fn"] for config in configs(compiled))
    return Report(tuple(graph for partitioner in partitioners for graph in partitioner.graphs))


def configs(compiled: Any) -> list[Mapping[str, Any]]:
    """The settings of Inductor that parts were compiled with, of those that have `options(...)` among them.

    Raises
    ------
    KernelError
        If there are none.
    """
    parts = [compiled, *compiled.modules()] if isinstance(compiled, nn.Module) else [compiled]
    found = [config for part in parts for config in _configs_of(part)]
    if not found:
        raise KernelError(
            "compiled must be what torch.compile(model, options=compression.options(...)) gave, or a model with "
            f"modules compiled so, not a {type(compiled).__name__} without such options"
        )
    return found


def _configs_of(part: Any) -> Iterator[Mapping[str, Any]]:
    """Of a module or function that is compiled, or whose forward is."""
    for one in (part, getattr(part, "_compiled_call_impl", None), getattr(part, "forward", None)):
        config = getattr(one, "get_compiler_config", lambda: None)() or {}
        if isinstance(config.get("custom_partitioner_fn"), CodedPartitioner):
            yield config


def percent(share: float) -> str:
    """For a reader: 9.1 %."""
    return f"{100 * share:.2g} %"


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table, its header being the first row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _lines(number: int, graph: Graph) -> Iterator[str]:
    ratio = f", {graph.before / graph.after:.1f} times less" if graph.after else ""
    yield f"graph {number}: {size(graph.after)} cross into backward in place of {size(graph.before)}{ratio}"
    groups: dict[tuple[str, ...], list[Crossing]] = {}
    for one in graph.crossings:
        form = f"{one.form}: {one.reason}" if one.reason else one.form
        error = percent(one.error) if one.error else "0"
        groups.setdefault((like(one.module) or "the model", one.operation, one.dtype, form, error), []).append(one)
    header = ("module", "operation", "dtype", "form", "error", "tensors", "before", "after")
    rows = [
        (*key, str(len(ones)), size(sum(one.before for one in ones)), size(sum(one.after for one in ones)))
        for key, ones in groups.items()
    ]
    yield from table([header, *rows])
