"""python -m benchmarks.gpu.training: steps of training, their peak, and the largest batch, by every method.

Four models at full width with random weights: a stack of four of Llama's layers with weights in bfloat16, and BERT, ViT
and ResNet-50 with weights in float32 under autocast to bfloat16. A step is forward, a loss, backward and the optimiser:
AdamW, of ResNet-50 SGD with momentum. Rows, as JSON lines, for --out or in
benchmarks/results/<device>/gpu-training.jsonl. implementation: the way; mode: the model. what:

    step                 s, of the batch in size
    peak                 B, of it: all that the allocator was asked for at most, with weights and the optimiser's state
    largest batch        samples, that ran in the memory there is; a line through two peaks says where to look. size has
                         the memory in bytes
    batch too large      samples, the fewest that were tried and did not run

What is compiled is compiled by blocks. Its largest batch is looked for where all blocks are alike; those of ResNet-50
would all be compiled anew for each size. On a CPU memory is said to be small, and what is compiled is counted as if it
were not; --quick makes the models tiny.
"""

from benchmarks.gpu import parsers
from coefficients import command

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("gpu.training", lambda: parsers.gpu_training(__doc__))

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.approx_backprop.batches import largest_that_runs
from benchmarks.clock import origin
from benchmarks.gpu.device import books, memory, seconds, settle
from benchmarks.gpu.ways import CHECKPOINT, COMPILED, STOCK, TINY, Model, alike, broken, loss, prepare
from benchmarks.options import device as device_of
from benchmarks.rows import Row, described_rows, record, summary
from kernels import KernelError

PROG = "gpu.training"
WARM_UP, STEPS = 3, 8
QUICK_WAYS = (STOCK, CHECKPOINT, "compress 4 bits")
GRAIN = 50  # the largest batch is found to a part of this many
GROWS, MOST = 1.3, 4096  # times the peak, of twice the batch; samples
SAFE = 0.95  # of memory, where the looking begins: the allocator wastes some


@dataclass(frozen=True)
class Task:
    """What is trained, and how."""

    model: Model
    momentum: bool = False  # SGD, not AdamW
    counted: int = 0  # bytes that there are said to be where there is no GPU


def tasks(device: torch.device, tiny: bool) -> dict[str, Task]:
    """By names of models."""

    def model(name: str, batch: int, seq: int | None = None, **options: Any) -> Model:
        if tiny:
            batch, seq = 2, None if seq is None else 16
            options["changed"] = TINY[name]
        return Model(name, device, batch, seq, **options)

    stack = {"num_hidden_layers": 4}
    return {
        "llama": Task(model("llama", 4, 2048, half=True, bare=True, changed=stack), counted=1 << 20),
        "bert": Task(model("bert", 32, 512, half=False), counted=4 << 20),
        "vit": Task(model("vit", 64, half=False), counted=4 << 20),
        "resnet50": Task(model("resnet50", 64, half=False), momentum=True, counted=8 << 20),
    }


class Training:
    """Steps of a model by one way, with any number of samples."""

    def __init__(self, task: Task, way: str) -> None:
        self.task, self.way, self.device = task, way, task.model.device
        self.model, self.args, self.kwargs = task.model.built()
        with task.model.autocast():
            self.applies = prepare(self.model, way, self.args, self.kwargs) is not None
        parameters = [*self.model.parameters()]
        if task.momentum:
            self.optimiser: torch.optim.Optimizer = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)
        else:
            self.optimiser = torch.optim.AdamW(parameters, lr=1e-6, fused=True)
        self.samples = 0

    def feed(self, batch: int) -> None:
        """So many samples from now on: those there are, again and again."""
        if batch != self.samples:
            self.given = [self._of(batch, inputs) for inputs in (self.args, self.kwargs)]
            self.samples = batch

    @staticmethod
    def _of(batch: int, given: Any) -> Any:
        def repeated(tensor: torch.Tensor) -> torch.Tensor:
            times = -(-batch // len(tensor))
            return tensor.repeat(times, *[1] * (tensor.dim() - 1))[:batch]

        if isinstance(given, dict):
            return {
                name: repeated(value) if isinstance(value, torch.Tensor) else value for name, value in given.items()
            }
        return tuple(repeated(value) for value in given)

    def step(self) -> None:
        """Forward, loss, backward, weights."""
        args, kwargs = self.given
        with self.task.model.autocast():
            result = loss(self.model(*args, **kwargs))
        result.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def peak(self, batch: int, limit: float = float("inf")) -> int:
        """Bytes of a step beside what is there before it; raises OutOfMemoryError."""
        self.feed(batch)
        settle(self.device)
        with books(self.device, limit) as counted:
            self.step()
            return counted.most()

    def persistent(self) -> int:
        """Bytes of weights, buffers and the optimiser's state."""
        states = (value for state in self.optimiser.state.values() for value in state.values())
        held = [*self.model.parameters(), *self.model.buffers(), *(value for value in states if torch.is_tensor(value))]
        return sum(value.nbytes for value in held)

    def runs(self, batch: int, limit: float) -> bool:
        """Whether a step of so many fits."""
        try:
            self.peak(batch, limit)
        except torch.OutOfMemoryError:
            return False
        finally:
            self.forget()
        return True

    def forget(self) -> None:
        """Let go of samples and gradients."""
        self.optimiser.zero_grad(set_to_none=True)
        self.given, self.samples = [], 0
        settle(self.device)


def measured(task: Task, way: str, where: dict[str, Any], steps: int) -> Iterator[Row]:
    """The rows of a task by one way; none where it changes nothing."""
    training = Training(task, way)
    if not training.applies:
        return
    batch = task.model.batch or 1
    training.feed(batch)
    for _ in range(WARM_UP):
        training.step()
    size = {"batch": batch} | ({} if task.model.seq is None else {"seq": task.model.seq})
    base = {"implementation": way, "mode": task.model.name, "dtype": "bfloat16", **where}
    yield Row("step", unit="s", size=size, **base, **summary(seconds(task.model.device, training.step, steps)))
    before = training.persistent()
    peak = training.peak(batch)
    yield Row("peak", unit="B", size=size, **base, **summary([float(before + peak)]))
    if way not in COMPILED or alike(training.model):
        yield from _largest(
            training, {**base, "size": {**size, "memory": memory(task.model.device, task.counted)}}, peak
        )


def _largest(training: Training, base: dict[str, Any], peak: int) -> list[Row]:
    """The largest batch that runs, and the least that does not."""
    batch, device = base["size"].pop("batch"), training.device
    guess = batch
    try:
        # Where gradients or the loss, not activations, make the peak, it does not grow yet.
        while (twice := training.peak(2 * batch)) < GROWS * peak and batch < MOST:
            guess = batch = 2 * batch
            peak = twice
        each = max(1.0, (twice - peak) / batch)
        room = base["size"]["memory"] - (training.persistent() if device.type == "cuda" else 0)
        guess = max(1, int((SAFE * room - (peak - each * batch)) / each))
    except torch.OutOfMemoryError:  # so few fit that there is no line to follow: the last that ran is where to begin
        training.forget()
    tried: dict[int, bool] = {}

    def runs(samples: int) -> bool:
        tried[samples] = training.runs(samples, base["size"]["memory"])
        return tried[samples]

    best = largest_that_runs(runs, guess, grain=max(1, guess // GRAIN))
    results = {
        "largest batch": [best],
        "batch too large": [min((n for n, good in tried.items() if not good), default=0)],
    }
    return [
        Row(what, unit="samples", **base, **summary([float(value) for value in values]))
        for what, values in results.items()
        if any(values)
    ]


def described(rows: Sequence[Row]) -> str:
    """The result in a line, to be shown while the rest runs."""
    first = rows[0]
    parts = [f"{row.what} {row.median:.6g} {row.unit}" for row in rows]
    return f"{first.mode}, {first.implementation}, {first.size}: {'; '.join(parts)}"


def models(
    asked: Sequence[str], ways: Sequence[str], device: torch.device, tiny: bool, failed: list[str]
) -> Iterator[list[Row]]:
    """The rows of each model and way; what does not run is said, put into `failed`, and keeps no other."""
    of_all = tasks(device, tiny)
    for name in asked:
        for way in ways:
            torch.compiler.reset()
            rows: list[Row] = []
            try:
                for row in measured(of_all[name], way, origin(device), 2 if tiny else STEPS):
                    rows.append(row)  # what was measured before an error counts
            except Exception as error:  # whatever stops one way must not stop the others
                failed.append(broken(PROG, f"{name}, {way}", error))
            settle(device)
            yield rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.gpu_training(__doc__, arguments)
    device = device_of(options.device)
    failed: list[str] = []
    taken = [way for way in (QUICK_WAYS if options.quick else parsers.TRAINING_WAYS) if way not in options.without]
    rows = described_rows(models(options.models, taken, device, options.quick, failed), described, options.out)
    record([("gpu-training", rows)] if rows else [], options.out, options.quick)
    return command.GOOD if rows and not failed else command.BAD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main, (KernelError,)))
