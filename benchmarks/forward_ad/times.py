"""Times of forward and backward, of `benchmarks.forward_ad`; on a GPU, the allocator's bytes too."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from benchmarks.clock import clock_of, origin, rounds
from benchmarks.forward_ad.cases import METHODS, run_by, shape
from benchmarks.kernels.cases import DTYPES, Call, call
from benchmarks.options import torch_threads
from benchmarks.rows import Row, summary

TIMED = ("chain", "linear – chain – linear")  # of BLOCKS
WRITTEN = ("mish", "newgelu")  # of CHAINS
OURS = "nested"


@dataclass(frozen=True)
class Run:
    """A block around a chain, with its dtype, size and device."""

    block: str
    chain: str
    dtype: str
    elements: int
    device: torch.device

    @property
    def base(self) -> dict[str, Any]:
        """The fields of a row that say what runs."""
        return {"what": f"{self.chain}: {self.block}", "dtype": self.dtype, "size": {"n": self.elements}}

    def calls(self, mode: str, methods: Sequence[str]) -> dict[str, Call]:
        """By method, a call of `forward`, or of `both` forward and backward, on the same input."""
        x, grad = (torch.randn(shape(self.block, self.elements)).to(self.device, DTYPES[self.dtype]) for _ in range(2))
        x.requires_grad_()
        made = {}
        for method in methods:
            module = run_by(method, self.block, self.chain, backend="inductor").to(self.device, DTYPES[self.dtype])
            made[method] = call(mode, module, x, grad, *module.parameters())
        return made


def times(
    runs: Sequence[Run], repeats: int, threads: Sequence[int], methods: Sequence[str] = METHODS
) -> Iterator[list[Row]]:
    """Yield the rows of each run, on a CPU with each number of threads."""
    for run in runs:
        for count in threads if run.device.type == "cpu" else [torch.get_num_threads()]:
            with torch_threads(count):
                clock = clock_of(run.device)
                of_methods = {
                    name: seconds for name, (seconds, _) in rounds(clock, run.calls("both", methods), repeats).items()
                }
                where = origin(run.device)
                mode = "device" if run.device.type == "cuda" else f"{count} thread{'s' if count > 1 else ''}"
                rows = time_rows({**run.base, **where, "mode": mode}, of_methods)
                if run.device.type == "cuda":
                    rows += allocated(run, methods, where)
            yield rows


def time_rows(base: Mapping[str, Any], of_methods: Mapping[str, Sequence[float]]) -> list[Row]:
    """Rows of each method's seconds, and of our median over each other's; those quantiles are of the rounds' ratios."""
    rows = [Row(implementation=name, unit="s", **base, **summary([*seconds])) for name, seconds in of_methods.items()]
    for rival, seconds in of_methods.items():
        if rival != OURS:
            of_rounds = summary([ours / other for ours, other in zip(of_methods[OURS], seconds, strict=True)])
            ratio = {**of_rounds, "median": median(of_methods[OURS]) / median(seconds)}
            rows.append(Row(implementation=f"{OURS} / {rival}", unit="ratio of medians", **base, **ratio))
    return rows


def allocated(measured: Run, methods: Sequence[str], where: Mapping[str, Any]) -> list[Row]:
    """On a GPU: bytes that forward adds, including its result, and the most during both passes."""
    rows = []
    for name in methods:  # one after the other, so that no other's tensors are allocated
        for mode in ("kept", "peak"):
            (run,) = measured.calls("forward" if mode == "kept" else "both", [name]).values()
            run()  # allocates workspaces, and compiles
            torch.cuda.synchronize(measured.device)
            torch.cuda.reset_peak_memory_stats(measured.device)
            before = torch.cuda.memory_allocated(measured.device)
            result = run()
            torch.cuda.synchronize(measured.device)
            after = torch.cuda.memory_allocated if mode == "kept" else torch.cuda.max_memory_allocated
            value = float(after(measured.device) - before)
            del result, run
            rows.append(Row(implementation=name, mode=mode, unit="B", **measured.base, **where, **summary([value])))
    return rows


def described(rows: Sequence[Row]) -> str:
    """The result in a line, shown while the rest runs."""
    ratios = [row for row in rows if row.unit.startswith("ratio")]
    (ours,) = (row for row in rows if row.implementation == OURS and row.unit == "s")
    low, high = ours.quantiles
    against = ", ".join(f"{row.median:.2f} × {row.implementation.split(' / ')[1]}" for row in ratios)
    spread = f"{1000 * ours.median:.2f} ms ({1000 * low:.2f} to {1000 * high:.2f})"
    return f"{ours.what}, {ours.size['n']} {ours.dtype}, {ours.mode}: {spread}; {against}"
