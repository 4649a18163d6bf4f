"""What a compiled kernel costs, as one report, and reports as a table of text."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from actfit.codegen.disassembly import KINDS, Code
from actfit.codegen.machine import Prediction, predict
from actfit.kernels.methods.method import KernelSpec
from actfit.kernels.methods.storage import TABLE_CODES


@dataclass(frozen=True)
class Report:
    """One kernel in one direction, compiled.

    Attributes
    ----------
    spec, dtype, direction, arch
        The kernel, and what it was compiled for.
    code
        Counts of its instructions.
    elements, registers
        A thread.
    spilled
        Bytes a thread (AMD: registers).
    shared
        Bytes of shared memory.
    triton
        Triton's version.
    """

    spec: KernelSpec
    dtype: str
    direction: str
    arch: str
    code: Code
    elements: int
    registers: int
    spilled: int
    shared: int
    triton: str

    @property
    def moved(self) -> float:
        """Bytes that the kernel moves for each element."""
        return self.spec.moved_bytes(self.direction, self.dtype)

    @property
    def bits(self) -> int:
        """Bits of a few-bit table, as asked for; else 0."""
        return int(self.spec.method.arguments().get("bits", 0))

    @property
    def instructions(self) -> float:
        """All instructions per element."""
        return self.code.total / self.elements

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """For the GPUs that run this code; none where their rates are not in the table."""
        counts = {unit: count / self.elements for unit, count in self.code.units.items()}
        return predict(self.arch, self.moved, counts)

    @property
    def accesses(self) -> dict[tuple[str, str, int], int]:
        """Counts by ("load" or "store", "tensor", "packed" bytes or few-bit "table", bits a thread)."""
        counts = {}
        for (access, bits), count in self.code.accesses.items():
            what = "packed" if bits == 8 else "tensor"
            if self.spec.storage is TABLE_CODES and bits == 32:
                what = "table"  # gathers of 32 bits
            counts[access, what, bits] = count
        return dict(sorted(counts.items()))

    @property
    def title(self) -> str:
        """What was compiled, without the direction."""
        return f"{self.spec.function.name}, {self.spec.method}, {self.dtype}, {self.arch} (Triton {self.triton})"


def as_table(reports: Iterable[Report]) -> str:
    """Text: a block for each kernel, with a column for each direction."""
    blocks = []
    for title, group in groupby(reports, key=lambda report: report.title):
        directions = list(group)
        lines = [("", [report.direction for report in directions]), *_lines(directions)]
        wide = max(12, *(len(cell) + 2 for _, cells in lines for cell in cells))
        texts = [f"{name:<40}" + "".join(f"{cell:>{wide}}" for cell in cells) for name, cells in lines]
        blocks.append("\n".join([title, *texts, *_remarks(directions)]))
    return "\n\n".join(blocks)


def _lines(reports: Sequence[Report]) -> list[tuple[str, list[str]]]:
    rows: dict[str, Callable[[Report], object]] = {
        "bytes moved per element": lambda report: f"{report.moved:g}",
        "instructions per element": lambda report: f"{report.instructions:.1f}",
        **{f"  {kind}": partial(_of_kind, kind) for kind in KINDS},
        **{f"{access}s, bits a thread": partial(_widths, access) for access in ("load", "store")},
        "registers": lambda report: report.registers,
        "spilled": lambda report: report.spilled,
        "shared memory, bytes": lambda report: report.shared,
    }
    lines = [(name, [str(cell(report)) for report in reports]) for name, cell in rows.items()]
    for predictions in zip(*(report.predictions for report in reports), strict=True):
        lines += [
            (f"{predictions[0].gpu}: memory takes, ps per element", [f"{each.memory:.2f}" for each in predictions]),
            ("  issuing takes, ps", [f"{each.issuing:.2f}" for each in predictions]),
            ("  issue slots needed", [f"{each.shares['issue']:.0%}" for each in predictions]),
            ("  busiest unit", [f"{each.tightest} {each.shares[each.tightest]:.0%}" for each in predictions]),
            ("  bound by memory", ["yes" if each.memory_bound else "no" for each in predictions]),
        ]
    return lines


def _of_kind(kind: str, report: Report) -> str:
    return f"{report.code.kinds[kind] / report.elements:.1f}"


def _widths(access: str, report: Report) -> str:
    """As "2 x 128, 3 x 8 packed"."""
    words = []
    for (kind, what, bits), count in report.accesses.items():
        if kind == access:
            words.append(f"{count} x {bits}" + (f" {what}" if what != "tensor" else ""))
    return ", ".join(reversed(words)) or "-"


def _remarks(reports: Sequence[Report]) -> list[str]:
    """Warnings about the numbers above."""
    lines = []
    for report in reports:
        code, where = report.code, report.direction
        if code.loops or code.calls:
            lines.append(f"{where}: jumps back {code.loops}, calls {code.calls}; the counts are too low")
        if code.skips:
            lines.append(f"{where}: jumps ahead {code.skips}; the counts are of all paths together")
        if report.elements != 8:
            lines.append(f"{where}: {report.elements} elements a thread, not 8; packing goes between threads")
    if not reports[0].predictions:
        lines.append(f"no rates for {reports[0].arch}: see codegen.machine")
    return lines
