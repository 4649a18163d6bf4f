"""What is saved for backward, as numbers, table, JSON and picture."""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from actfit.coefficients.pictures import FORMATS, SALT, undated
from actfit.kernels.errors import KernelError

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float, up: bool = False) -> str:
    """Bytes with a unit, as 11.5 MiB; `up`: not less than they are, so that they can be a budget."""
    power = 0
    while abs(count) >= 1023.95 and power < len(UNITS) - 1:
        count, power = count / 1024, power + 1
    if power and up:
        count = math.ceil(10 * count) / 10
    return f"{count:.1f} {UNITS[power]}" if power else f"{count:.0f} B"


def like(name: str) -> str:
    """A module's name without the numbers of repeated ones: h.*.mlp for h.0.mlp."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def common(names: Iterable[str]) -> str:
    """One name for several that differ in numbers, which become *."""
    columns = zip(*(name.split(".") for name in names), strict=True)
    return ".".join(parts[0] if len(set(parts)) == 1 else "*" for parts in columns)


def picture(path: str | PathLike[str]) -> Any:
    """matplotlib's Figure, if it can be saved to `path`; raises KernelError for a folder, and another ending."""
    if Path(path).suffix.lower() not in FORMATS or Path(path).is_dir():
        raise KernelError(f"plot must be a file that ends in one of {', '.join(FORMATS)}, got {str(path)!r}")
    from matplotlib.figure import Figure  # takes a second to import, and only pictures need it

    return Figure


@dataclass(frozen=True)
class Saver:
    """An operation that saves a tensor.

    Attributes
    ----------
    module
        The name of its module in the model.
    operation
        Torch's function, or the autograd.Function.
    """

    module: str
    operation: str


@dataclass(frozen=True)
class SavedTensor:
    """One storage that is saved.

    Attributes
    ----------
    bytes
        Size of the whole storage.
    shape, dtype
        Of the first tensor saved in it.
    by
        The operations that save it, in order.
    seen
        Whether a hook saw autograd save it; else it is only still alive, and `by` says what made it.
    """

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    by: tuple[Saver, ...]
    seen: bool = True


@dataclass(frozen=True)
class Group:
    """The tensors that one operation saves in one module or in repeated ones: h.*.mlp stands for h.0.mlp and h.1.mlp.

    Attributes
    ----------
    module
        Its name, with * for numbers that differ.
    operation
        As in a `Saver`.
    bytes, tensors
        How many it saves.
    """

    module: str
    operation: str
    bytes: int
    tensors: int


@dataclass(frozen=True)
class Saved:
    """What is saved for backward. All numbers are bytes, and each storage counts once.

    Attributes
    ----------
    tensors
        Tensors that forward made and saves, largest first.
    inputs
        Bytes saved of other tensors that existed before forward.
    parameters
        Bytes saved of parameters and buffers.
    copies
        Bytes of copies of parameters, as autocast makes them.
    """

    tensors: tuple[SavedTensor, ...]
    inputs: int = 0
    parameters: int = 0
    copies: int = 0

    @property
    def total(self) -> int:
        """Bytes of `tensors`, the activations."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def unseen(self) -> int:
        """The part of `total` that hooks did not see, such as tensors put on a `ctx`."""
        return sum(tensor.bytes for tensor in self.tensors if not tensor.seen)

    def groups(self) -> list[Group]:
        """`tensors` grouped by the operation that saves them first; largest group first."""
        by_saver: dict[tuple[str, str], list[SavedTensor]] = {}
        for tensor in self.tensors:
            saver = tensor.by[0]
            by_saver.setdefault((like(saver.module), saver.operation), []).append(tensor)
        groups = []
        for (_, operation), tensors in by_saver.items():
            name, sizes = common(tensor.by[0].module for tensor in tensors), [tensor.bytes for tensor in tensors]
            groups.append(Group(name, operation, sum(sizes), len(list(filter(None, sizes)))))
        groups = [group for group in groups if group.bytes]
        return sorted(groups, key=lambda group: (-group.bytes, group.module, group.operation))

    def table(self, rows: int = 12) -> str:
        """The `rows` largest groups, in Markdown."""
        groups = self.groups()
        shown, rest = groups[:rows], groups[rows:]
        lines = ["| module | operation | tensors | kept | share |", "|---|---|---:|---:|---:|"]
        lines += [self._row(group.module or "(model)", group.operation, group.tensors, group.bytes) for group in shown]
        if rest:
            lines.append(self._row(f"{len(rest)} more", "", sum(r.tensors for r in rest), sum(r.bytes for r in rest)))
        lines.append(self._row("all", "", len([tensor for tensor in self.tensors if tensor.bytes]), self.total))
        return "\n".join(lines)

    def besides(self) -> str:
        """Saved tensors that are not activations, in one line."""
        parts = [("inputs", self.inputs), ("parameters", self.parameters), ("copies of parameters", self.copies)]
        note = "; ".join(f"{what} {size(count)}" for what, count in parts if count)
        hidden = f"{size(self.unseen)} of it kept otherwise than by autograd; " if self.unseen else ""
        return f"{hidden}kept besides: {note or 'nothing'}"

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.besides()}"

    def to_json(self) -> str:
        """Everything: the totals, the groups, and each tensor."""
        totals = {"total": self.total, "unseen": self.unseen}
        besides = {"inputs": self.inputs, "parameters": self.parameters, "copies": self.copies}
        groups, tensors = (list(map(asdict, rows)) for rows in (self.groups(), self.tensors))
        return json.dumps({**totals, **besides, "groups": groups, "tensors": tensors}, indent=1) + "\n"

    def plot(self, path: str | PathLike[str], rows: int = 12) -> None:
        """Draw the `rows` largest groups as bars, into a file in the format of its ending.

        It is written whole or not at all, and without a date. Raises KernelError for an ending not in FORMATS, and
        OSError where it cannot be written.
        """
        figure_of = picture(path)
        from matplotlib import rc_context

        groups = self.groups()[:rows][::-1]
        figure = figure_of(figsize=(8, 1 + 0.3 * len(groups)), layout="constrained")
        axes = figure.add_subplot()
        names, sizes = [f"{group.module} {group.operation}" for group in groups], [group.bytes for group in groups]
        bars = axes.barh(names, [count / 2**20 for count in sizes])
        axes.bar_label(bars, [f"{count / self.total:.0%}" for count in sizes], padding=2)
        axes.set_xlabel(f"MiB kept for backward; {size(self.total)} in all")
        with undated(Path(path)) as (partial, metadata), rc_context(SALT):
            figure.savefig(partial, metadata=metadata)

    def _row(self, module: str, operation: str, tensors: int, count: int) -> str:
        share = count / self.total if self.total else 0.0
        return f"| {module} | {operation} | {tensors} | {size(count)} | {share:.1%} |"
