"""python -m benchmarks.gpu.models: training steps of whole models of real size, by every way to save less.

Random weights in bfloat16: a model shaped as Llama 3.2 1B, 4 x 2048 tokens, without its head and with it, also trained
by LoRA (rank 16, of all linear layers), and ViT-L/16, 128 pictures. Ways: eager; `actfit.compress`, exact, by bits, and
by a default plan for a share of the bytes kept; checkpoints of each layer, by transformers' own flag; and layers
compiled one by one, as they are, with checkpoints and by `actfit.compress`. Rows, as JSON lines, for --out or in
benchmarks/results/<device>/gpu-models.jsonl. implementation: the way; mode: the model. what:

    kept, peak    B, by the allocator, over what is there before a step: after forward, and at most; no gradients are
                  there before, and the peak has them
    first step    s, with capture and compilation
    step          s, of forward and backward
    planned       B at the peak, and the ratio of times to eager's, that a plan promises
    error         of the gradient of all weights, against the eager one, relative to its length; of large weights
                  65536 elements count. Attention's backward sums in another order each time: eager errs by as much as
                  checkpoints do

--quick makes the models tiny.
"""

from actfit.coefficients import command
from benchmarks.gpu import parsers

if __name__ == "__main__":  # before the imports, which take most of the time
    command.early("gpu.models", lambda: parsers.gpu_models(__doc__))

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from actfit import KernelError, compress
from actfit.kernels.memory import zoo
from actfit.kernels.memory.saved import size
from actfit.kernels.planning.plan import Plan
from benchmarks.clock import origin
from benchmarks.compression.meter import measured as measured_bytes
from benchmarks.gpu.ways import TINY, blocks, broken
from benchmarks.options import device as device_of
from benchmarks.parsers import BY_INDUCTOR, FITTED
from benchmarks.rows import Row, described_rows, record, summary

PROG = "gpu.models"
WARM_UP, STEPS = 4, 8
SAMPLED = 1 << 16  # elements of a weight whose gradients are compared
EAGER, CHECKPOINT, COMPILED, COMPILED_CHECKPOINT = "eager", "checkpoint", "compiled", "compiled checkpoint"
COMPRESSED = {"compress exact": None, "compress 8 bits": 8, "compress 4 bits": 4}
QUICK_WAYS = (EAGER, "compress exact", "compress 8 bits", CHECKPOINT)
LLAMA = {
    **{"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    **{"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": True},
}
VIT = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Task(NamedTuple):
    """A model, and the loss of its output."""

    model: nn.Module
    inputs: dict[str, Any]

    def loss(self) -> Tensor:
        """The model's own, or one that the last norm's output is not orthogonal to."""
        output = self.model(**self.inputs)
        if "labels" in self.inputs:
            own: Tensor = output.loss
            return own
        hidden: Tensor = output.last_hidden_state
        return (hidden[..., ::8].float() - 0.1).square().mean()

    def step(self) -> None:
        """Forward and backward; gradients are made anew."""
        self.model.zero_grad(set_to_none=True)
        self.loss().backward()

    def gradient(self) -> Tensor:
        """That of all trained weights, float32; of large ones a sample."""
        grads = (weight.grad.flatten() for weight in self.model.parameters() if weight.grad is not None)
        return torch.cat([grad[:: max(1, len(grad) // SAMPLED)].float() for grad in grads])


def built(name: str, device: torch.device, tiny: bool) -> Task:
    """A model with its inputs, the same each time."""
    kind = "vit" if name == "vit-l" else "llama"
    batch, seq = (128, None) if kind == "vit" else (4, 2048)
    changed: dict[str, Any] = VIT if kind == "vit" else {**LLAMA, "use_cache": False}
    if tiny:
        batch, seq, changed = 32, seq and 16, TINY[kind]  # as many elements as have codes
    torch.manual_seed(0)
    with device:
        model, _, inputs = zoo.build(kind, batch=batch, seq=seq, dtype=torch.bfloat16, **changed)
    model = model.base_model if name == "llama-bare" else model
    inputs.pop("attention_mask", None)
    if kind == "vit":
        inputs["labels"] = torch.zeros(batch, dtype=torch.long, device=device)
    elif name != "llama-bare":
        inputs["labels"] = inputs["input_ids"].clone()
    return Task(_with_lora(model, device) if name == "llama-lora" else model, inputs)


def _with_lora(model: nn.Module, device: torch.device) -> nn.Module:
    import peft  # the part is left out where it is missing

    config = peft.LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=LINEAR)
    adapted: nn.Module = peft.get_peft_model(model, config, autocast_adapter_dtype=False).to(device)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:  # all zero, a gradient would be, too
            nn.init.normal_(weight, std=0.02)
    return adapted


def prepare(model: Any, way: str, inputs: Any = None) -> Plan | None:
    """Have a model train in one of the ways, with these inputs; the plan, if there is one.

    Raises ValueError for another way, which would train in eager mode.
    """
    if way not in (known := (*parsers.MODEL_WAYS, *parsers.COMPILED_MODEL_WAYS)):
        raise ValueError(f"way must be one of {', '.join(known)}, got {way!r}")
    ours, compiles = BY_INDUCTOR.get(way, way), way in BY_INDUCTOR
    if ours in COMPRESSED:
        compress(model, bits=COMPRESSED[ours], compiled=compiles)
    if ours in FITTED:
        return compress(model, fit=FITTED[ours], inputs=inputs, compiled=compiles).plan
    if way in (COMPILED, COMPILED_CHECKPOINT):
        for block in blocks(model):
            block.compile(dynamic=False)
    if way in (CHECKPOINT, COMPILED_CHECKPOINT):
        if not all(weight.requires_grad for weight in model.parameters()):
            model.enable_input_require_grads()  # as transformers' Trainer does
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return None


class Bench:
    """Measures the ways of one model; the eager gradient, with which others are compared, is computed first."""

    def __init__(self, build: Callable[[], Task], base: dict[str, Any], device: torch.device, steps: int) -> None:
        self.build, self.base, self.device, self.steps = build, base, device, steps
        eager = build()
        eager.step()
        self.exact = eager.gradient()

    def rows(self, way: str) -> Iterator[Row]:
        """The rows of a way."""
        task = self.build()
        plan = prepare(task.model, way, task.inputs)
        [first] = seconds(self.device, task.step, 1)
        yield self._row(way, "error", "relative error", [self._error(task.gradient())])
        task.model.zero_grad(set_to_none=True)
        settle(self.device)
        taken = measured_bytes(task.loss, self.device)
        yield self._row(way, "kept", "B", [taken.kept])
        yield self._row(way, "peak", "B", [taken.peak])
        seconds(self.device, task.step, WARM_UP)
        yield self._row(way, "first step", "s", [first])
        yield self._row(way, "step", "s", seconds(self.device, task.step, self.steps))
        if plan is not None and plan.time is not None:
            yield self._row(way, "planned", "B", [plan.planned.peak])
            yield self._row(way, "planned", "ratio of times", [plan.time])

    def _error(self, gradient: Tensor) -> float:
        return float((gradient - self.exact).norm() / self.exact.norm())

    def _row(self, way: str, what: str, unit: str, values: Sequence[float]) -> Row:
        return Row(what, way, unit=unit, **self.base, **summary([float(value) for value in values]))


def seconds(device: torch.device, call: Callable[[], object], count: int) -> list[float]:
    """The seconds of each of `count` calls, one after the other, on the device: the host may be ahead."""
    if device.type != "cuda":
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            call()
            times.append(time.perf_counter() - begun)
        return times
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize(device)
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize(device)
    return [events[at].elapsed_time(events[at + 1]) / 1000 for at in range(count)]


def settle(device: torch.device) -> None:
    """Free unused memory for the next measurement."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def models(
    asked: Sequence[str], ways: Sequence[str], device: torch.device, tiny: bool, failed: list[str]
) -> Iterator[list[Row]]:
    """The rows of each model and way; what does not run is said, put into `failed`, and keeps no other."""
    where = origin(device)
    where["versions"]["transformers"] = metadata.version("transformers")
    for name in asked:
        build = partial(built, name, device, tiny)
        inputs = next(iter(build().inputs.values()))
        sizes = {"batch": inputs.shape[0], ("seq" if inputs.dim() == 2 else "pixels"): inputs.shape[-1]}
        base = {"mode": name, "size": sizes, "dtype": "bfloat16", **where}
        bench = Bench(build, base, device, 2 if tiny else STEPS)
        for way in ways:
            torch.compiler.reset()
            settle(device)
            rows: list[Row] = []
            try:
                for row in bench.rows(way):
                    rows.append(row)  # what was measured before an error counts
            except Exception as error:  # whatever stops one way must not stop the others
                failed.append(broken(PROG, f"{name}, {way}", error))
            yield rows


def described(rows: Sequence[Row]) -> str:
    """The result in a line, to be shown while the rest runs."""
    parts = [f"{row.what} {size(row.median) if row.unit == 'B' else f'{row.median:.4g} {row.unit}'}" for row in rows]
    return f"{rows[0].mode}, {rows[0].implementation}: {'; '.join(parts)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises Misuse for bad options."""
    options = parsers.gpu_models(__doc__, arguments)
    device = device_of(options.device)
    ways = QUICK_WAYS if options.quick else options.ways
    failed: list[str] = []
    rows = described_rows(models(options.models, ways, device, options.quick, failed), described, options.out)
    record([("gpu-models", rows)] if rows else [], options.out, options.quick)
    return command.GOOD if rows and not failed else command.BAD


if __name__ == "__main__":
    sys.exit(command.run(PROG, main, (KernelError,)))
