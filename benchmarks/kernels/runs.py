"""The measurements of `benchmarks.kernels`: the rows of a function, dtype and size."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from benchmarks.clock import CpuClock, GpuClock, clock_of, origin, rounds, time_rows
from benchmarks.kernels import cases
from benchmarks.kernels.cases import DTYPES, MODES, WIDER, Call
from benchmarks.rows import Row, summary


@dataclass
class Bench:
    """The device, the number of rounds, the clock, and the fields of rows about their origin."""

    device: torch.device
    runs: int
    clock: GpuClock | CpuClock = field(init=False)
    origin: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.clock = clock_of(self.device)
        self.origin = origin(self.device)

    def activation(self, function: str, dtype: str, n: int, methods: Sequence[str]) -> list[Row]:
        """Rows of forward, backward and both for n elements, and of the bytes kept."""
        torch.compiler.reset()  # else torch's limit of recompilations makes it run eager
        x, grad = cases.tensors((n,), dtype, self.device)
        base = {"what": function, "dtype": dtype, "size": {"n": n}, **self.origin}
        moved = {name: cases.moved(function, name, x.itemsize, n) for name in methods}
        run = {name: cases.make(function, name) for name in methods}
        rows = []
        for mode in MODES:
            sizes = {name: moved[name][mode] for name in methods}
            sizes["copy"] = sizes["eager"]
            calls = {name: cases.call(mode, run[name], x, grad) for name in methods}
            calls["copy"] = cases.copy(sizes["copy"], self.device)
            rows += time_rows({**base, "mode": mode}, rounds(self.clock, calls, self.runs), sizes)
        for name in methods:
            # Nothing else saves the clone.
            call = cases.call("forward", lambda inputs, f=run[name]: f(inputs.clone()), x, grad)
            rows += self._kept(base, name, call, cases.kept(function, name, x.itemsize, n))
        return rows

    def layer(self, what: str, function: str, dtype: str, tokens: int, width: int, methods: Sequence[str]) -> list[Row]:
        """Rows of forward and backward with the weights' gradients, and of the bytes kept."""
        torch.compiler.reset()
        hidden = WIDER * width
        first, last = (
            nn.Linear(*shape, dtype=DTYPES[dtype], device=self.device) for shape in ((width, hidden), (hidden, width))
        )
        x, _ = cases.tensors((tokens, width), dtype, self.device)
        _, grad = cases.tensors((tokens, hidden if what == "linear" else width), dtype, self.device)
        weights = [*first.parameters(), *(last.parameters() if what == "mlp" else [])]
        run = {name: cases.make_layer(what, function, name, first, last) for name in methods}
        base = {"what": f"{function} {what}", "dtype": dtype, "size": {"tokens": tokens, "width": width}, **self.origin}
        calls = {name: cases.call("both", run[name], x, grad, *weights) for name in methods}
        rows = time_rows({**base, "mode": "both"}, rounds(self.clock, calls, self.runs), {})
        out = grad.nbytes if what == "mlp" else 0
        for name in methods:
            kept = cases.kept(function, name, x.itemsize, tokens * hidden) + out
            # The compiler decides what to save of a layer and what to compute again.
            call = cases.call("forward", run[name], x, grad)
            rows += self._kept(base, name, call, None if name == "compile" else kept)
        return rows

    def _kept(self, base: dict[str, Any], name: str, forward: Call, expected: int | None) -> list[Row]:
        """Rows of the bytes that forward adds on a GPU, and of those expected."""
        if self.device.type != "cuda":
            return []
        forward()  # allocates workspaces, and compiles
        before = _allocated()
        y = forward()
        grown = {unit: after - before[unit] for unit, after in _allocated().items()}
        del y
        if expected is not None:
            grown["expected B"] = expected
        base = {**base, "mode": "kept", "implementation": name}
        return [Row(unit=unit, **base, **summary([value])) for unit, value in grown.items()]


def _allocated() -> dict[str, int]:
    """Bytes that the allocator has given out, and bytes requested: up to 1 MiB of a block may be unused."""
    asked = torch.cuda.memory_stats()["requested_bytes.all.current"]
    return {"B": torch.cuda.memory_allocated(), "asked B": asked}
