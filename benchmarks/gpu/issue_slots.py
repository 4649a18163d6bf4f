"""python -m benchmarks.gpu.issue_slots: does the share of issue slots that a kernel needs say how long it takes?

docs/slack.md predicts, from counted instructions: a kernel takes as long as its bytes, or, where its instructions need
more than the issue slots of that time, their share of it. Here each kernel is timed beside a copy of as many bytes.
Rows, as JSON lines, for --out or in benchmarks/results/<device>/issue-slots.jsonl. what: the function; implementation:
the method; mode: forward or backward; size: elements and, for few bits, bits. unit:

    s                   seconds, in rounds in which the kernels of a function take turns with their copies
    ratio of times      implementation "method / copy": to the copy, round by round
    predicted share     of the issue slots that there are while memory delivers the bytes: the counted instructions, for
                        the GPU of that name in codegen/machine.py, or an H200 where it has none

On a CPU the reference runs, to see that all of it does; --quick takes two functions.
"""

from benchmarks.gpu import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("gpu.issue_slots", lambda: parsers.issue_slots(__doc__))

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks import slack
from benchmarks.clock import clock_of, origin, rounds
from benchmarks.kernels.cases import DTYPES, Call, copy
from benchmarks.options import device as device_of
from benchmarks.rows import Row, described_rows, record, summary
from codegen.machine import GPU, GPUS
from kernels import KernelError
from kernels.engine import launch, reference
from kernels.methods.functions import FUNCTIONS
from kernels.methods.method import KernelSpec
from kernels.validate import kernel_for

PROG = "gpu.issue_slots"
METHODS = {"invact": 0, "fewbit": 3, "forward-ad": 0}  # and bits
MEASURED = {"bfloat16": tuple(FUNCTIONS), "float32": ("gelu", "silu", "mish", "tanh")}
SIZE, RUNS = {"cuda": 1 << 26, "cpu": 1 << 12}, {"cuda": 20, "cpu": 3}


def model(device: torch.device) -> GPU:
    """The GPU of the table that this is, or an H200."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    known = (gpu for gpu in GPUS if all(word in name for word in gpu.name.split()))
    return next(known, GPUS[-1])


def predicted(kernel: KernelSpec, dtype: str, direction: str, gpu: GPU) -> float:
    """The share of issue slots, 1 for all that there are while memory delivers the bytes."""
    bits = kernel.method.arguments().get("bits", 0)
    key = (kernel.function.name, f"{kernel.method.name} {direction}", bits, dtype)
    count = float(_counted(gpu.arch)[key]["median"])
    return count / gpu.lanes["issue"] / (kernel.moved_bytes(direction, dtype) / gpu.bytes_per_clock)


def _counted(arch: str) -> dict[tuple[str, str, int, str], dict[str, Any]]:
    if arch not in _COUNTED:
        _COUNTED[arch] = slack.load(arch)
    return _COUNTED[arch]


_COUNTED: dict[str, dict[tuple[str, str, int, str], dict[str, Any]]] = {}


def calls(kernel: KernelSpec, x: torch.Tensor, grad: torch.Tensor) -> dict[str, Call]:
    """Forward and backward, as the ops run them."""
    params = tuple(kernel.function.parameters.values())
    run = launch if x.is_cuda else reference
    y, saved = run.forward(kernel, x, params)
    needed = y if kernel.storage.keeps_output else None
    return {
        "forward": lambda: run.forward(kernel, x, params),
        "backward": lambda: run.backward(kernel, grad, needed, saved, params),
    }


def measure(functions: Sequence[str], device: torch.device) -> Iterator[list[Row]]:
    """The rows of each function and dtype."""
    where, gpu, n, clock = origin(device), model(device), SIZE[device.type], clock_of(device)
    for function in functions:
        for dtype in (dtype for dtype, of in MEASURED.items() if function in of):
            x, grad = (torch.randn(n, device=device, dtype=DTYPES[dtype]) for _ in range(2))
            rows = []
            for method, bits in METHODS.items():
                kernel, _ = kernel_for(function, {}, method, bits or None)
                base = {"what": function, "dtype": dtype, "size": {"n": n, "bits": bits}, **where}
                for direction, call in calls(kernel, x, grad).items():
                    bytes_moved = int(kernel.moved_bytes(direction, dtype) * n)
                    pair = {method: call, "copy": copy(bytes_moved, device)}
                    times = {name: seconds for name, (seconds, _) in rounds(clock, pair, RUNS[device.type]).items()}
                    ratios = [own / other for own, other in zip(times[method], times["copy"], strict=True)]
                    share = predicted(kernel, dtype, direction, gpu)
                    rows += [
                        Row(implementation=name, mode=direction, unit=unit, **base, **summary(values))
                        for name, unit, values in (
                            (method, "s", times[method]),
                            (f"{method} / copy", "ratio of times", ratios),
                            (method, "predicted share", [share]),
                        )
                    ]
            yield rows


def described(rows: Sequence[Row]) -> str:
    """The result in a line, to be shown while the rest runs."""
    shares = {(row.implementation, row.mode): row.median for row in rows if row.unit == "predicted share"}
    ratios = {(row.implementation, row.mode): row.median for row in rows if row.unit == "ratio of times"}
    parts = [
        f"{method} {mode} {share:.0%} -> {ratios[f'{method} / copy', mode]:.2f}"
        for (method, mode), share in shares.items()
    ]
    return f"{rows[0].what}, {rows[0].dtype}, predicted share -> time, x copy: {'; '.join(parts)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.issue_slots(__doc__, arguments)
    device = device_of(options.device)
    rows = described_rows(measure(options.fn, device), described, options.out)
    record([("issue-slots", rows)] if rows else [], options.out, options.quick)
    return command.GOOD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main, (KernelError,)))
