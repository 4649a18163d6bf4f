"""python -m benchmarks.compression: codes of what crosses in a compiled model, beside every rival.

Stacks of blocks are trained for a step by each way: eager; compiled; with each block checkpointed, eager and compiled;
compiled with `ban_recompute_materialized_backward = False` ("the flag"), with an `activation_memory_budget`, and with
PyTorch's pass that keeps activations in 8 bits of floating point; eager with hooks that code whatever autograd saves;
and ours: `actfit.compress`, exact, in few bits and by plans, also compiled; and whole graphs in few bits by
`actfit.options`. Rows, as JSON lines, in benchmarks/results/<device>/compression-<what>.jsonl, whole or not at all;
--quick writes to --out only. With --models, --ways or --dtypes, rows of the others stay as they are, and
those of ways that fail.
what: the network; implementation: the way. Kinds of rows, by mode:

    kept, peak   B, by the allocator, over what is there before a step: after forward, and at most. Gradients are there
                 before, and are added to
    error        of the gradient of all weights, against the eager one in float32, relative to its length
    planned      B at the peak and the ratio of times to eager's that a plan promises
    time         s of forward and backward, in rounds in which all take turns, and the ratios to eager's and compiled's;
                 in float32, on a GPU in bfloat16, where --dtypes says nothing else

Networks are small on a CPU, and as wide as models are on a GPU.

A way that fails has no rows, and is said.
"""

from actfit.coefficients import command
from benchmarks import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("compression", lambda: parsers.compression(__doc__).parse_args())

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any, TypeVar

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler would write two lines a step

import torch
from torch import Tensor

from actfit import KernelError
from benchmarks.clock import clock_of, origin, ratio_rows, rounds
from benchmarks.compression.meter import measured
from benchmarks.compression.models import LARGE, NORMAL, TINY, Size, build
from benchmarks.compression.ways import COMPILED, EAGER, is_compiled, prepared, settings_of
from benchmarks.gpu.ways import broken
from benchmarks.kernels.cases import DTYPES
from benchmarks.options import can_compile, names, output, torch_threads
from benchmarks.options import device as device_of
from benchmarks.options import runs as runs_of
from benchmarks.rows import Row, described_rows, record, summary

PROG = "compression"
QUICK_RUNS = 2
QUICK_MODELS, QUICK_WAYS = ("GELU MLP",), ("eager", "checkpoint", "hook 4 bits")


Result = TypeVar("Result")


class Bench:
    """The device, ways and sizes that are measured."""

    def __init__(self, device: torch.device, ways: Sequence[str], sizes: dict[str, Size]) -> None:
        self.device, self.ways, self.sizes = device, ways, sizes
        self.failed: list[str] = []

    def bytes(self, models: Sequence[str], dtypes: Sequence[str]) -> Iterator[list[Row]]:
        """Yield rows of bytes kept, peak and error."""
        for name in models:
            for dtype in dtypes:
                for way in self.ways:
                    yield self._tried(self._bytes, name, dtype, way) or []

    def _tried(self, measure: Callable[[str, str, str], Result], name: str, dtype: str, way: str) -> Result | None:
        gc.collect()
        try:
            return measure(name, dtype, way)
        except Exception as error:  # an error in one way must not stop the others
            self.failed.append(broken(PROG, f"{name}, {dtype}, {way}", error))
            return None

    @cache  # noqa: B019 - there is only one Bench
    def _exact(self, name: str, dtype: str) -> Tensor:
        """The gradient in float32, of weights rounded to the dtype."""
        net = build(name, self.sizes[name], DTYPES[dtype], self.device).to(torch.float32)
        net.loss(net.module).backward()
        return net.gradient()

    def _bytes(self, name: str, dtype: str, way: str) -> list[Row]:
        exact = self._exact(name, dtype)
        net = build(name, self.sizes[name], DTYPES[dtype], self.device)
        with settings_of(way):
            loss = prepared(net, way)
            loss().backward()  # compiles, and allocates the gradients
            error = float((net.gradient() - exact).norm() / exact.norm())
            bytes = measured(loss, self.device)
        values = [("kept", "B", bytes.kept), ("peak", "B", bytes.peak), ("error", "relative error", error)]
        if net.plan is not None and net.plan.time is not None:
            values += [("planned", "B", net.plan.planned.peak), ("planned", "ratio of times", net.plan.time)]
        base = {"implementation": way, **self._base(name, dtype)}
        return [Row(mode=mode, unit=unit, **base, **summary([float(value)])) for mode, unit, value in values]

    def times(self, models: Sequence[str], dtypes: Sequence[str], repeats: int) -> Iterator[list[Row]]:
        """Yield rows of the seconds of a step."""
        for name, dtype in product(models, dtypes):
            made = {way: self._tried(self._step, name, dtype, way) for way in self.ways}
            calls = {way: step for way, step in made.items() if step is not None}
            taken = rounds(clock_of(self.device), calls, repeats)
            base = {**self._base(name, dtype), "mode": "time"}
            rows: list[Row] = []
            for rival in (EAGER, COMPILED):
                compared = ratio_rows(base, taken, rival) if rival in taken else []
                rows += [row for row in compared if row.unit != "s"] if rows else compared
            yield rows

    def _step(self, name: str, dtype: str, way: str) -> Callable[[], None]:
        """A call of forward and backward that has run once."""
        net = build(name, self.sizes[name], DTYPES[dtype], self.device)
        loss = prepared(net, way)

        def step() -> None:
            with settings_of(way):  # compiling another way resets this one, so it compiles again
                loss().backward()

        step()
        return step

    def _base(self, name: str, dtype: str) -> dict[str, Any]:
        return {"what": name, "size": self.sizes[name]._asdict(), "dtype": dtype, **origin(self.device)}


def described(rows: Sequence[Row]) -> str:
    """The result in a line, shown while the rest runs."""
    first = rows[0]
    if first.mode == "time":
        parts = [f"{row.implementation} {row.median:.2f}" for row in rows if row.unit == "ratio of times"]
        return f"{first.what}, {first.dtype}: {', '.join(parts)}"
    kept, peak, error = (row.median for row in rows[:3])
    title = f"{first.what}, {first.dtype}, {first.implementation}"
    return f"{title}: kept {kept / 2**20:.1f} MiB, peak {peak / 2**20:.1f} MiB, error {error:.1e}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.compression(__doc__).parse_args(arguments)
    kinds = names("what", options.what, parsers.COMPRESSION_WHATS)
    device = device_of(options.device)
    repeats = runs_of(options.runs, QUICK_RUNS if options.quick else parsers.COMPRESSION_RUNS)
    out = output(options.out)
    models = names("models", options.models, tuple(NORMAL)) if options.models or not options.quick else QUICK_MODELS
    ways = names("ways", options.ways, parsers.COMPRESSION_WAYS) if options.ways or not options.quick else QUICK_WAYS
    if "times" in kinds and not {EAGER, COMPILED} & set(ways):
        raise command.Misuse(f"ways must have {EAGER} or {COMPILED}, to which times are compared, got {options.ways!r}")
    dtypes = names("dtypes", options.dtypes, ("float32", "bfloat16"))
    timed = dtypes if options.dtypes else ["bfloat16" if device.type == "cuda" else "float32"]
    if not can_compile(device):
        command.say(PROG, "torch.compile is left out: there is no C++ compiler")
        ways = [way for way in ways if not is_compiled(way)]
    bench = Bench(device, ways, TINY if options.quick else LARGE if device.type == "cuda" else NORMAL)
    # Past the limit, what is compiled once more would run in eager mode.
    limits = torch._dynamo.config.patch(recompile_limit=1000, fail_on_recompile_limit_hit=True)
    with torch_threads(1), limits:
        measures: dict[str, Callable[[], Iterator[list[Row]]]] = {
            "bytes": lambda: bench.bytes(models, dtypes),
            "times": lambda: bench.times(models, timed, repeats),
        }
        so_far = out if len(kinds) == 1 else None
        files = ((f"{PROG}-{kind}", described_rows(measures[kind](), described, so_far)) for kind in kinds)
        record(files, out, options.quick, partial=bool(options.models or options.ways or options.dtypes))
    return command.GOOD if not bench.failed else command.BAD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main, (KernelError,)))
