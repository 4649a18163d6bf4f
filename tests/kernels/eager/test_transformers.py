"""transformers' architectures with all saved tensors in few bits."""

import gc
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernels import convert, saved_bytes
from kernels.conversion import Report
from kernels.eager import coder
from kernels.eager.encoded import Encoded, Groups
from kernels.eager.provenance import Provenance
from kernels.methods.every_tensor import EveryTensor
from tests.kernels.eager.architectures import Sizes
from tests.kernels.eager.of_images import OF_IMAGES
from tests.kernels.eager.of_text import OF_TEXT

pytestmark = pytest.mark.slow

ARCHITECTURES = {**OF_TEXT, **OF_IMAGES}
# With fewer elements in a channel, batch norms of many layers would turn small errors into noise.
SIZES = defaultdict(Sizes, dict.fromkeys(("mobilenet-v2", "efficientnet"), Sizes(batch=8, image=64)))
ALIKE = {  # they save the same kinds of tensors as others here
    *("roberta", "deberta", "albert", "opt", "mpt", "mistral", "phi3", "gemma", "gemma3", "qwen3", "olmo2", "switch"),
    *("dinov2", "convnextv2", "swin", "focalnet"),
}
REASONS = {"integers", "a statistic", "needs no gradient", "a mask, which may hold infinities"}
# Divisors of narrow heads; logits, which are an output.
EXACT = {"swinv2": {"normalize"}, "gemma2": {"tanh"}}
RATE = 1e-3
# Of numbers from N(0, 1), the range of 64 is 4.7; an error is spread over a step.
ERROR = 4.7 / 255 / math.sqrt(12)


class Counted(Groups):
    """Codes that are counted."""

    made = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Counted.made += 1


class Full(Encoded):
    """Codes of full width."""

    def __init__(self, flat: Tensor, method: EveryTensor, group: int, drawn: Any = None, inside: Any = None) -> None:
        self._tensors = [flat.clone()]

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return tensors[0].clone()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small tensors have codes. Counting them collects garbage: imports of transformers are frozen first."""
    monkeypatch.setattr(Provenance, "smallest", 64)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


class Step:
    """A forward and a backward pass of a model, always from the same state."""

    def __init__(self, model: nn.Module, inputs: dict[str, Any]) -> None:
        self.model, self.inputs = model, inputs
        self.state = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def run(self) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs and buffers, and the gradients."""
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(self.state[name])
        self.model.zero_grad()
        torch.manual_seed(3)  # of dropout
        output = self.model(**self.inputs)
        output.loss.backward()
        given = [value.detach() for value in output.values() if isinstance(value, Tensor)]
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        return [*given, *buffers], [
            weight.grad.clone() for weight in self.model.parameters() if weight.grad is not None
        ]

    def converted(self, bits: int) -> tuple[list[Tensor], list[Tensor]]:
        """The same with the model converted."""
        report = convert(self.model, "compress", bits=bits)
        try:
            return self.run()
        finally:
            report.revert()


def same(got: list[Tensor], expected: list[Tensor]) -> bool:
    pairs = zip(got, expected, strict=True)
    return all(torch.equal(tensor.nan_to_num(), other.nan_to_num()) for tensor, other in pairs)


def error(got: list[Tensor], expected: list[Tensor]) -> float:
    """The relative error of all gradients as one vector."""
    apart = sum(float((gradient - exact).square().sum()) for gradient, exact in zip(got, expected, strict=True))
    return math.sqrt(apart / sum(float(gradient.square().sum()) for gradient in expected))


def check_what_is_kept(report: Report, name: str, before: int, after: int) -> None:
    """4 bits per element, one for minima and steps of groups of 32, one for a jump; and whole tensors with a reason."""
    whole = report.whole or ()
    for tensor in whole:
        known = tensor.reason in REASONS or tensor.operation in EXACT.get(name, ())
        assert known or tensor.bytes < before / 100, tensor  # few elements
    assert after <= before * 6 / 32 + sum(tensor.bytes for tensor in whole)
    assert after < before / 4


def check_codes_of_full_width(step: Step, stock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and gradients are stock's bit for bit."""
    with monkeypatch.context() as patched:
        for kind in ("Groups", "Logarithms", "Sided"):
            patched.setattr(coder, kind, Full)
        exact = step.converted(bits=8)
    assert same(exact[0], stock[0])
    assert same(exact[1], stock[1])


def test_those_that_are_like_others_are_known() -> None:
    assert ARCHITECTURES.keys() > ALIKE


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.repeats] if name in ALIKE else []) for name in ARCHITECTURES]
)
def test_each_architecture(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward is stock's bit for bit, and so are gradients with codes of full width; they are near it with few bits."""
    model, inputs = ARCHITECTURES[name].build(SIZES[name]), ARCHITECTURES[name].batch(SIZES[name])
    step = Step(model, inputs)
    stock = step.run()
    check_codes_of_full_width(step, stock, monkeypatch)

    monkeypatch.setattr(coder, "Groups", Counted)
    monkeypatch.setattr(Counted, "made", 0)
    off = {8: error(step.converted(bits=8)[1], stock[1])}
    assert off[8] < ERROR * math.sqrt(Counted.made)  # as for independent errors
    off[4] = error(step.converted(bits=4)[1], stock[1])
    assert off[8] < off[4] / (17 / 2)  # steps are a 17th as large, 15 / 255; a factor 2 allows for higher orders

    before = saved_bytes(model, **inputs).total
    report = convert(model, "compress", bits=4, inputs=inputs)
    check_what_is_kept(report, name, before, saved_bytes(model, **inputs).total)
    _train(step)
    report.revert()
    again = step.run()
    assert same(again[0], stock[0])
    assert same(again[1], stock[1])


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*deprecated:FutureWarning")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "bart", "wav2vec2", "falcon", "vit"])
def test_with_checkpoints(name: str, reentrant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block's input is stored in few bits, and the block runs again on it."""
    model, inputs = ARCHITECTURES[name].build(SIZES[name]), ARCHITECTURES[name].batch(SIZES[name])
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    step = Step(model, inputs)
    stock = step.run()
    check_codes_of_full_width(step, stock, monkeypatch)

    monkeypatch.setattr(coder, "Groups", Counted)
    monkeypatch.setattr(Counted, "made", 0)
    assert error(step.converted(bits=8)[1], stock[1]) < ERROR * math.sqrt(Counted.made)
    before = saved_bytes(model, **inputs).total
    report = convert(model, "compress", bits=4)
    assert saved_bytes(model, **inputs).total < before / 3
    report.revert()


def _train(step: Step) -> None:
    """A step along the gradient, and back: the loss falls."""
    weights = list(step.model.parameters())
    before, gradients = [weight.detach().clone() for weight in weights], step.run()
    norm = math.sqrt(sum(float(weight.square().sum()) for weight in gradients[1]))
    with torch.no_grad():
        for weight in weights:
            if weight.grad is not None:
                weight -= RATE / norm * weight.grad
    assert step.run()[0][0] < gradients[0][0]
    with torch.no_grad():
        for weight, old in zip(weights, before, strict=True):
            weight.copy_(old)
