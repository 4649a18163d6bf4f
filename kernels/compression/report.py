"""Which tensors a compiled model saves for backward, and in what form."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from actfit.kernels.compression.crossing import Crossing, Graph
from actfit.kernels.errors import KernelError
from actfit.kernels.memory.compiled import settings_with_codes
from actfit.kernels.memory.saved import like, size
from actfit.kernels.text import percent, table

ERROR = "error: expected of normally distributed values, relative, in the root mean square"


@dataclass(frozen=True)
class Report:
    """The graphs of a compiled model; `str(report)` has a table of each, with one row for layers that are alike.

    Of graphs of the same modules, as for other sizes, the table of the largest stands for all.
    """

    graphs: tuple[Graph, ...]

    def __str__(self) -> str:
        if not self.graphs:
            return (
                "no graph was compiled in this process: the model did not train yet, or its code came from Inductor's "
                "cache, which has no report; TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 compiles it again"
            )
        kinds: list[list[tuple[int, Graph]]] = []
        for numbered in enumerate(self.graphs, 1):
            alike = next((kind for kind in kinds if kind[0][1].is_like(numbered[1])), None)
            if alike is None:
                kinds.append([numbered])
            else:
                alike.append(numbered)
        return "\n\n".join([*("\n".join(_of_kind(kind)) for kind in kinds), ERROR])


def report(compiled: Callable[..., Any]) -> Report:
    """Report the tensors that a compiled model or function saves for its backward pass.

    Parameters
    ----------
    compiled
        The result of torch.compile with `options(...)`, or a model some of whose modules were compiled so.

    Raises
    ------
    KernelError
        If no part of it was compiled with `options(...)`.
    """
    settings = settings_with_codes(compiled)
    if not settings:
        raise KernelError(
            "compiled must be what torch.compile(model, options=actfit.options(...)) gave, or a model with "
            f"modules compiled so, not a {type(compiled).__name__} without such options"
        )
    partitioners = dict.fromkeys(config["custom_partitioner_fn"] for config in settings)
    return Report(tuple(graph for partitioner in partitioners for graph in partitioner.graphs))


def _of_kind(kind: Sequence[tuple[int, Graph]]) -> Iterator[str]:
    largest = max(kind, key=lambda numbered: numbered[1].before)
    yield from _lines(*largest)
    others = sorted(numbered[1].after for numbered in kind if numbered is not largest)
    if others:
        span = " to ".join(dict.fromkeys(map(size, (others[0], others[-1]))))
        yield f"  and {len(others)} more of the same modules, as for other sizes: {span}"


def _lines(number: int, graph: Graph) -> Iterator[str]:
    instead = f" in place of {size(graph.before)}" if graph.before != graph.after else ""
    ratio = f", {graph.before / graph.after:.1f} times less" if instead and graph.after else ""
    yield f"graph {number}: {size(graph.after)} are saved for backward{instead}{ratio}"
    groups: dict[tuple[str, ...], list[Crossing]] = {}
    for crossing in graph.crossings:
        form = f"{crossing.form}: {crossing.reason}" if crossing.reason else crossing.form
        error = percent(crossing.error) if crossing.error else "0"
        groups.setdefault(
            (like(crossing.module) or "the model", crossing.operation, crossing.dtype, form, error), []
        ).append(crossing)
    header = ("module", "operation", "dtype", "form", "error", "tensors", "before", "after")
    rows = [
        (
            *key,
            str(len(crossings)),
            size(sum(crossing.before for crossing in crossings)),
            size(sum(crossing.after for crossing in crossings)),
        )
        for key, crossings in groups.items()
    ]
    yield from table([header, *rows]) if rows else ()
