"""What `compress` keeps, counted on fake tensors: equal to what a real run holds and the allocator gives out."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from actfit import KernelError, compress
from actfit.kernels.memory import Recorder, peak_bytes, saved_bytes
from tests.kernels.saved import bytes_allocated, bytes_in_graph

WAYS: dict[str, dict[str, Any]] = {"exact": {}, "4 bits": {"bits": 4}, "invact": {"policy": "invact"}}
EACH = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
WIDTH = 64


def transformer(dropout: float) -> nn.Module:
    """Layers beside an embedding and a head, whose calls stay out of the graphs of the layers."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout, F.gelu, batch_first=True)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(100, WIDTH), nn.Linear(WIDTH, 100)
            self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.head(self.encoder(self.embedding(words)))
            return logits

    return Net()


WORDS = torch.arange(4 * 128).reshape(4, 128) % 100


@EACH
@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_bytes_on_fakes_are_those_that_are_held(way: dict[str, Any], dropout: float) -> None:
    model = transformer(dropout)
    stock = saved_bytes(model, WORDS).total
    compress(model, **way)
    counted = saved_bytes(model, WORDS, fake=True)
    model(WORDS)  # captures
    output, grown = bytes_allocated(model, WORDS)
    held = bytes_in_graph(output, [*model.parameters(), WORDS])
    assert counted.total == held == grown - output.nbytes == saved_bytes(model, WORDS, fake=False).total
    assert counted.unseen == 0
    assert counted.total < stock
    assert {tensor.by[0].module for tensor in counted.tensors if tensor.bytes > 4 * WIDTH} <= {
        *("encoder.layers.0", "encoder.layers.1", "encoder.layers.2", "head")
    }


@pytest.mark.slow
def test_attention_with_dropout_keeps_no_square_on_cuda() -> None:
    """Of each layer PyTorch's math keeps the probabilities' mask on a CPU; FlashAttention keeps its random numbers."""
    model = transformer(0.1).bfloat16()
    compress(model)
    as_run, cuda = (saved_bytes(model, WORDS, accounting=accounting) for accounting in ("as-run", "cuda"))
    squares = 3 * 4 * 4 * 128 * 128
    assert as_run.total - cuda.total > 2 * squares  # probabilities in two bytes, and their mask's bits
    assert {tensor.by[0].operation for tensor in cuda.tensors} >= {"_scaled_dot_product_flash_attention"}
    assert peak_bytes(model, WORDS, accounting="cuda") < peak_bytes(model, WORDS)


def test_counting_leaves_the_model_as_it_was() -> None:
    model = transformer(0.0)
    handle = compress(model)
    saved_bytes(model, WORDS, fake=True)
    peak_bytes(model, WORDS)
    assert handle.report.graphs == ()  # of the model itself, which did not run
    output = model(WORDS)
    assert len(handle.report.graphs) > 0
    handle.remove()
    assert torch.equal(output, model(WORDS))


def test_a_checkpoint_inside_blocks_around_attention() -> None:
    """Fused attention may draw random numbers: the graph saves their state, by an operation of higher order."""

    class Inside(nn.TransformerEncoderLayer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            made: torch.Tensor = checkpoint(super().forward, x, use_reentrant=False)
            return made

    model = nn.Sequential(*(Inside(WIDTH, 4, WIDTH, 0.0, batch_first=True) for _ in range(2)))
    x = torch.randn(4, 64, WIDTH, requires_grad=True)
    compress(model)
    counted = saved_bytes(model, x, fake=True)
    model(x)  # captures
    output, grown = bytes_allocated(model, x)
    assert counted.total == grown - output.nbytes
    assert peak_bytes(model, x) > counted.total


def test_a_recorder_sees_what_captured_graphs_save_but_not_compiled_ones() -> None:
    for options in ({}, {"bits": 8}):
        model = transformer(0.0)
        stock, handle = saved_bytes(model, WORDS).total, compress(model, **options)
        for _ in range(2):  # the first captures
            with Recorder(model) as recorder:
                output = model(WORDS)
            assert recorder.saved(output).total == saved_bytes(model, WORDS).total < stock
        assert saved_bytes(lambda x, model=model: model(x), WORDS).total == recorder.saved(output).total
        assert not handle.stock
    model = transformer(0.0)
    compress(model, compiled=True)
    with pytest.raises(KernelError, match=r"^model must not be compiled for a Recorder, .*; use saved_bytes"):
        Recorder(model).__enter__()
