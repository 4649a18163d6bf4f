"""python -m benchmarks.fewbit: the few-bit search against the published algorithm, and how it grows.

1. n = 4096 cells of GELU' and K = 32 levels: the published dense dynamic programme, ours on the same cells,
   and the whole of `fit` (cells, search, refinement, certificate, exact polish).
2. Time and memory of the search for growing n at K = 256: shared up to n = 10^6, contiguous up to 10^5.
3. The search for joint codes, whose cells have two numbers, f' and f, beside that for contiguous levels of f' alone.
4. Tables for all functions of the catalogue: seconds, peak memory and bytes of the files, for each number of bits.

Writes rows and a plot under benchmarks/results/<device>/. Takes some fifteen minutes; --what asks for a part.
"""

from benchmarks import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("fewbit", lambda: parsers.fewbit(__doc__))

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.baselines.published import dense_dp
from benchmarks.rows import Row, save, summary
from coefficients.document import dumps, seal
from fitting.activations import get, names
from fitting.fewbit import judge
from fitting.fewbit.document import to_document
from fitting.fewbit.dp import partition
from fitting.fewbit.rules import MAX_BITS
from fitting.fewbit.solve import fit
from fitting.fewbit.steps import Steps
from fitting.weights import uniform

SHARED_SIZES = (1_000, 3_162, 10_000, 31_623, 100_000, 316_228, 1_000_000)
CONTIGUOUS_SIZES = (1_000, 3_162, 10_000, 31_623, 100_000)
LEVELS = 256
JOINT_SIZES = ((10_000, 16), (100_000, 16), (10_000, 256))  # cells, codes


def cells(n: int) -> tuple[np.ndarray, np.ndarray]:
    """GELU' at the middles of n equal cells of [-10, 10], and the cells' masses."""
    width = 20.0 / n
    return get("gelu").df(_middles(n)), np.full(n, width)


def _middles(n: int) -> np.ndarray:
    return -10 + 20.0 / n * (np.arange(n) + 0.5)


def timed(call: Callable[[], Any], runs: int) -> tuple[list[float], Any]:
    """Seconds of `runs` calls, after one that is not counted, and the last result."""
    result = call()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    return seconds, result


def against_published(n: int = 4096, k: int = 32) -> list[Row]:
    """Rows of the rival, of our search on the same cells (which must reach the same cost) and of the whole fit."""
    values, masses = cells(n)
    theirs, (cuts, cost) = timed(lambda: dense_dp(values, masses, k), 3)
    ours, partitioned = timed(lambda: partition(values, masses, k), 30)
    whole, fitted = timed(lambda: fit(get("gelu"), 5, levels="contiguous"), 5)
    means = np.array([part.mean() for part in np.split(values, cuts)])
    published = Steps(-10 + 20.0 / n * np.array(cuts), np.arange(k), means)
    reached = judge.l2_squared(get("gelu"), uniform(), (-10.0, 10.0), published)
    # 1e-9: the published algorithm's prefix sums err by about n·eps of ∫f'², 1e-4 of the cost.
    if partitioned.cost > cost * (1 + 1e-9) or fitted.error.l2_squared > reached:
        raise RuntimeError(f"not as good as published: {partitioned.cost} {cost}, {fitted.error.l2_squared} {reached}")
    size = {"n": n, "levels": k}
    common = {"dtype": "float64", "unit": "s", "mode": "contiguous"}
    errors = {"published (dense numpy)": reached, "actfit fit with certificate": fitted.error.l2_squared}
    return [
        *(
            Row("fewbit error", name, "contiguous", {"levels": k}, "float64", "l2_squared", **summary([error]))
            for name, error in errors.items()
        ),
        Row("fewbit search", "published (dense numpy)", size=size, **common, **summary(theirs)),
        Row("fewbit search", "actfit partition", size=size, **common, **summary(ours)),
        Row("fewbit fit", "actfit fit with certificate", size={"levels": k}, **common, **summary(whole)),
        Row("fewbit search", "published / actfit", size=size, mode="contiguous", dtype="float64", unit="ratio",
            **summary([statistic / np.median(ours) for statistic in theirs])),
    ]  # fmt: skip


def measure_one(kind: str, n: int, k: int) -> dict[str, float]:
    """Seconds of the processor and additional peak memory (MB) of one search, in this process."""
    values, masses = cells(n)
    if kind == "shared":
        values = np.sort(values)
    if kind == "joint":
        values = np.stack([values, get("gelu").f(_middles(n))], axis=1)
    partition(values[:: max(1, n // 100)], masses[:: max(1, n // 100)], 4)  # compile
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux: resets the peak
    before = peak_memory()
    start = time.process_time()
    partition(values, masses, k)
    seconds = time.process_time() - start
    return {"seconds": seconds, "megabytes": (peak_memory() - before) / 1024}


def peak_memory() -> int:
    """The process's largest resident size since the peak was last reset, in kB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def growth(runs: int) -> list[Row]:
    """Rows of the search for growing n."""
    plan = [("shared", n) for n in SHARED_SIZES] + [("contiguous", n) for n in CONTIGUOUS_SIZES]
    return _searches("fewbit search", [(kind, n, LEVELS) for kind, n in plan], runs)


def joint(runs: int) -> list[Row]:
    """Rows of the search for joint codes and of that for contiguous levels."""
    return _searches("joint search", [(kind, *size) for size in JOINT_SIZES for kind in ("contiguous", "joint")], runs)


def _searches(what: str, plan: list[tuple[str, int, int]], runs: int) -> list[Row]:
    rows = []
    for kind, n, k in tqdm(plan, unit="size", disable=None):
        results = [_apart("--one", kind, str(n), str(k)) for _ in range(runs)]
        for unit, key in (("s", "seconds"), ("MB", "megabytes")):
            values = summary([result[key] for result in results])
            rows.append(Row(what, "actfit partition", kind, {"n": n, "levels": k}, "float64", unit, **values))  # type: ignore[arg-type]
    return rows


def _apart(*words: str) -> dict[str, float]:
    """The output of this command in a process of its own, so that each has its own peak of memory."""
    command = [sys.executable, "-m", "benchmarks.fewbit", *words]
    result: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return result


def fit_all(bits: int) -> dict[str, float]:
    """Fit all functions in this process: seconds, peak memory (MB), bytes of the files, the largest gap."""
    start, size, gap = time.process_time(), 0, 0.0
    for name in names():
        result = fit(get(name), bits)
        size += len(dumps(seal(to_document(result), 1)).encode())
        gap = max(gap, result.error.gap)
    return {"s": time.process_time() - start, "MB": peak_memory() / 1024, "B": size, "gap": gap}


def catalogue() -> list[Row]:
    """Rows of fitting all functions, for each number of bits."""
    rows = []
    for bits in tqdm(range(1, MAX_BITS + 1), unit="bits", disable=None):
        common = {"size": {"bits": bits, "functions": len(names())}, "dtype": "float64", "mode": "best"}
        rows += [
            Row("fewbit catalogue", "actfit fit with certificate", unit=unit, **common, **summary([value]))  # type: ignore[arg-type]
            for unit, value in _apart("--catalogue", str(bits)).items()
        ]
    return rows


def plot(rows: list[Row]) -> Figure:
    """Time and memory against n, on logarithmic axes, with a line proportional to n."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    for axes, unit, label in zip(
        figure.subplots(1, 2), ("s", "MB"), ("seconds", "additional peak memory, MB"), strict=True
    ):
        for kind in ("shared", "contiguous"):
            points = [(row.size["n"], row.median) for row in rows if row.unit == unit and row.mode == kind]
            axes.loglog(*zip(*points, strict=True), marker="o", markersize=4, label=f"{kind}, {LEVELS} levels")
        n = np.array(SHARED_SIZES[2:], dtype=float)
        first = next(row.median for row in rows if row.unit == unit and row.size["n"] == SHARED_SIZES[2])
        axes.loglog(n, first * n / n[0], color="0.6", linewidth=0.8, linestyle="--", label="proportional to n")
        axes.set_xlabel("cells n")
        axes.set_ylabel(label)
        axes.legend(frameon=False, fontsize=8)
    return figure


def main() -> None:
    options = parsers.fewbit(__doc__)
    if options.one:
        kind, n, k = options.one
        print(json.dumps(measure_one(kind, int(n), int(k))))
        return
    if options.catalogue:
        print(json.dumps(fit_all(options.catalogue)))
        return
    rows: list[Row] = []
    if "search" in options.what:
        versus, grown = against_published(), growth(options.runs)
        rows += [*versus, *grown]
        for row in versus:
            print(f"{row.implementation:30} {row.median:.4g} {row.unit}")
    if "joint" in options.what:
        rows += joint(options.runs)
    if "catalogue" in options.what:
        rows += catalogue()
    path = save(rows, "fewbit", partial=True)
    if "search" in options.what:
        plot(grown).savefig(path.with_name("fewbit-growth.png"), dpi=150)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
