"""A plan's peak is not above the model's: what is decoded whole at the peak stays whole, or nothing is planned."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from actfit import KernelError, compress
from actfit.kernels.graph.planning import CapturedTask
from actfit.kernels.memory.step import peak_bytes
from actfit.kernels.planning.batches import Call, call_of
from actfit.kernels.planning.blocks import BlockWays, recomputing, repeated_blocks
from actfit.kernels.planning.planner import plan_of
from benchmarks.compression.meter import measured
from tests.kernels.planning.nets import NETS, text

pytestmark = pytest.mark.slow

VOCABULARY, TOKENS = 16384, (4, 64)
MANY_TOKENS = 4, 512  # of which all logits take more than a chunk's steps
NUMBERS = 1e-3  # of a peak: what operations allocate within them, as numbers of rows


def language_model(
    shape: tuple[int, int] = TOKENS, dtype: torch.dtype = torch.float32, *, tied: bool = False
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A narrow Llama with a large vocabulary, and labels: most of its peak is its loss head."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, use_cache=False, tie_word_embeddings=tied, **sizes)
    tokens = torch.randint(VOCABULARY, shape)
    return transformers.LlamaForCausalLM(config).to(dtype), {"input_ids": tokens, "labels": tokens}


def allocated(model: nn.Module, inputs: dict[str, Tensor]) -> int:
    """The peak of a step by the allocator; gradients are there before."""

    def loss() -> Tensor:
        result: Tensor = model(**inputs).loss
        return result

    loss().backward()
    return measured(loss, torch.device("cpu")).peak


def test_a_language_model_takes_no_more_than_with_checkpoints() -> None:
    """By the CPU's allocator. Codes of the logarithms would be decoded beside two gradients of their size."""
    model, inputs = language_model()
    with recomputing(model, repeated_blocks(model)):
        checkpoints = allocated(model, inputs)
    stock = allocated(model, inputs)
    assert checkpoints < stock
    handle = compress(model, fit=checkpoints, inputs=inputs)
    assert handle.plan is not None
    assert allocated(model, inputs) <= checkpoints


@pytest.mark.parametrize(("dtype", "tied"), [(torch.float32, False), (torch.bfloat16, True)], ids=str)
def test_logits_that_nobody_needs_are_in_no_plan(dtype: torch.dtype, tied: bool) -> None:
    """The peak of a step whose loss is computed in chunks is what the CPU's allocator gives out."""
    model, inputs = language_model(MANY_TOKENS, dtype, tied=tied)
    own = CapturedTask(model, call_of(inputs)).step(BlockWays(exact=True)).peak_with({})
    tokens = inputs["labels"]

    def loss(output: Any, tokens: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output.logits.float().flatten(0, 1), tokens.flatten())

    given = CapturedTask(model, Call((tokens,), {}), loss, tokens).step(BlockWays(exact=True)).peak_with({})
    compress(model, chunked_loss=True)
    assert own == pytest.approx(allocated(model, inputs), rel=NUMBERS)
    loss(model(tokens), tokens).backward()
    taken = measured(lambda: loss(model(tokens), tokens), torch.device("cpu")).peak
    assert given == pytest.approx(taken, rel=NUMBERS)


class Head(nn.Module):
    """A layer and the logarithms of probabilities, which are most of what it saves."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = NETS["mlp"]()[0], nn.Linear(64, 1024)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)).log_softmax(-1)[:, 0].mean()


def test_what_is_decoded_whole_at_the_peak_stays_whole() -> None:
    model, x = Head(), torch.randn(128, 64)
    task = CapturedTask(model, call_of(x))
    coded, low = task.step(), task.step(low_peak=True)
    least = [step.peak_with({site.name: 2 for site in step.sites}) for step in (coded, low)]
    assert least[1] <= least[0]
    plan = plan_of(task, least[1])
    compress(model, plan=plan)
    assert peak_bytes(model, x) <= plan.planned.peak <= least[1]


def named_budget(error: KernelError) -> Any:
    """The budget that a message names."""
    named = re.search(r"must be at least ([\d.]+(?: [KM]?i?B)?)", str(error))
    assert named is not None
    return named[1]


@pytest.mark.parametrize(("budget", "layers"), [(0.001, 2), ("1KiB", 1)])
def test_the_smallest_budget_that_is_named_can_be_met(budget: Any, layers: int) -> None:
    model, inputs = text(layers)
    task = CapturedTask(model, call_of(inputs))
    with pytest.raises(KernelError, match="budget must be at least") as caught:
        plan_of(task, budget, goal="error")
    assert plan_of(task, named_budget(caught.value), goal="error").needed


def test_the_smallest_error_that_is_named_can_be_met() -> None:
    model, inputs = NETS["mlp"]()
    task = CapturedTask(model, call_of(inputs))
    with pytest.raises(KernelError, match="max_gradient_error must be at least") as caught:
        plan_of(task, 0.2, max_gradient_error=1e-6, goal="error")
    assert plan_of(task, 0.2, max_gradient_error=float(named_budget(caught.value)), goal="error").needed
