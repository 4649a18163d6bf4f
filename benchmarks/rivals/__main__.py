"""python -m benchmarks.rivals: two blocks of a transformer by every rival, side by side: memory, error and time.

An MLP with GELU, and the gated SwiGLU and GeGLU, by eager PyTorch; torch.compile, as it is and with the flag that lets
it compute activations anew; torch's checkpoint of the block; on a GPU, Liger-Kernel's gates where it is installed; and
our methods. Rows, as JSON lines, in benchmarks/results/<device>/rivals-<what>.jsonl, whole or not at all; --quick
writes to --out only. what: the block. implementation: who. Kinds of rows:

    memory    what forward leaves for backward. On a CPU, mode: "counted", by storages, in units of the block's input,
              which counts, too. On a GPU by the allocator's books, in B: "allocated", with the result and without the
              input; and "peak", the most during both passes
    accuracy  relative error of the gradient of a weight or the input against float64, root of mean squares. mode: which
    speed     seconds in rounds in which all take turns, and the ratio to eager's. mode: "forward", "both" with
              backward, and "backward", by which both takes longer than forward, round by round
"""

from actfit.coefficients import command
from benchmarks import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("rivals", lambda: parsers.rivals(__doc__).parse_args())

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from actfit import KernelError, saved_bytes
from benchmarks.baselines.blocks import EAGER, MLP, Block, Rivals
from benchmarks.clock import clock_of, origin, ratio_rows, rounds
from benchmarks.compression.meter import measured
from benchmarks.kernels.cases import DTYPES, Call
from benchmarks.options import can_compile, names, output, torch_threads, whole
from benchmarks.options import device as device_of
from benchmarks.options import runs as runs_of
from benchmarks.rows import Row, described_rows, record, summary

PROG = "rivals"
WHATS = parsers.RIVAL_WHATS
DTYPE = "bfloat16"  # times on a CPU: float32, which CPUs are made for
COUNTED = (128, 64)  # tokens and width if bytes are counted
JUDGED = (256, 64)  # tokens and width if gradients are compared with float64
TIMED = {"cuda": ((8192, 1024), (8192, 4096)), "cpu": ((512, 256),)}
QUICK_TIMED = (64, 32)
RUNS = {"cuda": 40, "cpu": 41}
QUICK_RUNS = 2
MOST = {"tokens": 1 << 20, "width": 1 << 16}


def made(block: Block, tokens: int, dtype: str, device: torch.device) -> tuple[nn.Module, Tensor, Tensor]:
    """The block as its implementation runs it, after one run; an input, and an upstream gradient."""
    torch.manual_seed(0)
    module = block.module().to(device, DTYPES[dtype])
    x, grad = (torch.randn(tokens, block.width).to(device, DTYPES[dtype]) for _ in range(2))
    runs = block.run_by(module)
    runs(x.requires_grad_()).backward(grad)
    x.grad = None
    module.zero_grad(set_to_none=True)
    return runs, x, grad


def counted(rivals: Rivals, where: dict[str, Any]) -> list[Row]:
    """Rows of the bytes that each block saves, in units of its input."""
    rows = []
    tokens, width = COUNTED
    for block in rivals.blocks(width):
        torch.compiler.reset()
        torch.manual_seed(0)
        module, x = block.module().to(DTYPES[DTYPE]), torch.randn(tokens, width).to(DTYPES[DTYPE])
        saved = saved_bytes(block.run_by(module), x.requires_grad_())
        units = (saved.total + saved.inputs) / x.nbytes
        rows.append(Row(mode="counted", unit="units", **_base(block, tokens, DTYPE, where), **summary([units])))
    return rows


def allocated(rivals: Rivals, where: dict[str, Any]) -> list[Row]:
    """On a GPU: rows of the allocator's bytes after forward, and of the most during both passes, above those before."""
    rows = []
    for tokens, width in TIMED["cuda"]:
        for block in rivals.blocks(width):
            torch.compiler.reset()
            runs, x, grad = made(block, tokens, DTYPE, rivals.device)
            taken = measured(partial(runs, x), rivals.device, grad)
            base = _base(block, tokens, DTYPE, where)
            rows += [
                Row(mode=mode, unit="B", **base, **summary([float(value)]))
                for mode, value in (("allocated", taken.kept), ("peak", taken.peak))
            ]
            del runs, x, grad  # else they are freed while the next block runs
    return rows


def accuracy(rivals: Rivals, where: dict[str, Any]) -> list[Row]:
    """Rows of the error of each block's gradients against the same block in float64."""
    rows = []
    tokens, width = JUDGED
    for dtype in ("float32", DTYPE):
        for block in rivals.blocks(width):
            torch.compiler.reset()
            runs, x, grad = made(block, tokens, dtype, rivals.device)
            gradients = _gradients(runs, x, grad)
            torch.manual_seed(0)
            judge = block.exact().to(rivals.device, DTYPES[dtype]).double()  # of the rounded weights
            exact = _gradients(judge, x.detach().double().requires_grad_(), grad.double())
            weights = [name for name, weight in judge.named_parameters() if weight.dim() == 2]
            for name, weight, true in zip(("input", *weights), gradients, exact, strict=True):
                error = float((weight.double() - true).norm() / true.norm())
                base = _base(block, tokens, dtype, where)
                rows.append(Row(mode=name, unit="relative error", **base, **summary([error])))
    return rows


def _gradients(runs: nn.Module, x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    weights = [weight for weight in runs.parameters() if weight.dim() == 2]
    return torch.autograd.grad(runs(x), (x, *weights), grad)


def speed(
    rivals: Rivals,
    sizes: Sequence[tuple[int, int]],
    repeats: int,
    where: dict[str, Any],
    dtypes: Sequence[str] | None = None,
) -> Iterator[list[Row]]:
    """Yield the rows of times of each kind of block."""
    for dtype in dtypes or [DTYPE if rivals.device.type == "cuda" else "float32"]:
        for tokens, width in sizes:
            for kind in rivals.kinds:
                blocks = [block for block in rivals.blocks(width) if block.kind == kind]
                base = _base(blocks[0], tokens, dtype, where)
                del base["implementation"]
                rows = []
                for mode, seconds in _seconds(rivals.device, blocks, tokens, dtype, repeats).items():
                    rows += ratio_rows({**base, "mode": mode}, seconds, EAGER)
                yield rows


def _seconds(
    device: torch.device, blocks: Sequence[Block], tokens: int, dtype: str, repeats: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds by mode and implementation."""
    torch.compiler.reset()  # before any of them is made: all run in turns
    clock, times = clock_of(device), {}
    ready = {block.implementation: made(block, tokens, dtype, device) for block in blocks}
    for mode in ("both", "forward"):
        times[mode] = rounds(clock, {name: _step(mode, *block) for name, block in ready.items()}, repeats)
    # Compiled code may overwrite what backward has read, so backward cannot run alone repeatedly.
    backward = {
        name: [whole - part for whole, part in zip(both, times["forward"][name], strict=True)]
        for name, both in times["both"].items()
    }
    if min(min(seconds) for seconds in backward.values()) > 0:  # else rounds differ by more than backward takes
        times["backward"] = backward
    return times


def _step(mode: str, runs: nn.Module, x: Tensor, grad: Tensor) -> Call:
    weights = [*runs.parameters()]
    if mode == "forward":
        return lambda: runs(x)
    return lambda: torch.autograd.grad(runs(x), (x, *weights), grad)


def _base(block: Block, tokens: int, dtype: str, where: dict[str, Any]) -> dict[str, Any]:
    size = {"tokens": tokens, "width": block.width}
    return {"what": block.kind, "implementation": block.implementation, "size": size, "dtype": dtype, **where}


def described(rows: Sequence[Row]) -> str:
    """The result in a line, shown while the rest runs."""
    rows = [row for row in rows if row.mode == "both"]
    ratios = [f"{row.implementation} {row.median:.2f}" for row in rows if row.unit == "ratio of times"]
    return (
        f"{rows[0].what}, {rows[0].dtype}, {rows[0].size}: {EAGER} {1000 * rows[0].median:.2f} ms; {', '.join(ratios)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.rivals(__doc__).parse_args(arguments)
    kinds = names("what", options.what, WHATS)
    device = device_of(options.device)
    repeats = runs_of(options.runs, QUICK_RUNS if options.quick else RUNS[device.type])
    out = output(options.out)
    compiles = can_compile(device)
    if not compiles:
        command.say(PROG, "torch.compile is left out: there is no C++ compiler")
    rivals = Rivals(device, compiles and not options.quick, (MLP,) if options.quick else Rivals.kinds)
    sizes = _sizes(options.sizes) or ((QUICK_TIMED,) if options.quick else TIMED[device.type])
    dtypes = None if options.dtypes is None else names("dtypes", options.dtypes, tuple(DTYPES))

    def measure(what: str) -> list[Row]:
        where = origin(device)
        if what == "memory":
            return (allocated if device.type == "cuda" else counted)(rivals, where)
        if what == "accuracy":
            return accuracy(rivals, where)
        return described_rows(speed(rivals, sizes, repeats, where, dtypes), described)

    with torch_threads(1):
        record(((f"rivals-{what}", measure(what)) for what in kinds), out, options.quick)
    return command.GOOD


def _sizes(text: str | None) -> list[tuple[int, int]]:
    """Tokens and widths; raises Misuse if the text is something else."""
    sizes = []
    for word in [] if text is None else dict.fromkeys(text.split(",")):
        tokens, times, width = word.partition("x")
        if not times:
            raise command.Misuse(f"sizes must be tokens and widths as in 8192x1024, got {word!r}")
        sizes.append((whole("sizes", tokens, MOST["tokens"]), whole("sizes", width, MOST["width"])))
    return sizes


if __name__ == "__main__":
    sys.exit(command.run(PROG, main, (KernelError,)))
