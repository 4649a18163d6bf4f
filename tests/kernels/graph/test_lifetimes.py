"""When backward decodes, and how many bytes are alive."""

import copy

import pytest
import torch
from torch import Tensor, fx, nn

from actfit import compress
from actfit.kernels.graph import stretches
from actfit.kernels.graph.codes import decode
from actfit.kernels.graph.lifetimes import decode_once, live_bytes
from benchmarks.compression.meter import measured
from tests.kernels.compression.models import Attention, Llama
from tests.kernels.saved import bytes_in_graph

CPU = torch.device("cpu")


def graph_of(later_rows: int) -> tuple[fx.Graph, list[fx.Node]]:
    """Codes that are decoded for two products, between which and after which others take memory."""

    def run(codes: Tensor, weight: Tensor) -> Tensor:
        first = decode(codes, codes, codes, None, (64, 64), (0, 1), 64, torch.float32, False)
        made = torch.mm(first, weight)
        wide = torch.mm(made, weight)
        second = decode(codes, codes, codes, None, (64, 64), (0, 1), 64, torch.float32, False)
        narrow = torch.mm(second, wide)
        large = torch.tile(narrow, (later_rows, 1))
        return torch.sum(large)

    tracer = fx.Tracer(autowrap_functions=(decode,))
    graph = tracer.trace(run)
    for node in list(graph.nodes)[:-1]:
        rows = {"tile": later_rows * 64, "codes": 16}.get(node.name, 64)
        node.meta["val"] = torch.empty(1 if node.name == "sum_1" else (rows, 64))
    return graph, [node for node in graph.nodes if node.target is decode]


@pytest.mark.parametrize(("later_rows", "count"), [(1, 2), (8, 1)])
def test_decodings_are_held_where_more_is_alive_elsewhere(later_rows: int, count: int) -> None:
    graph, made = graph_of(later_rows)
    before = max(live_bytes(graph))
    decode_once(graph, [made], compiles=False)
    assert len([node for node in graph.nodes if node.target is decode]) == count
    assert max(live_bytes(graph)) == before


def test_live_bytes_count_views_as_what_they_show() -> None:
    def run(x: Tensor) -> Tensor:
        made = torch.exp(x)
        return torch.sum(torch.ops.aten.t.default(made))

    tracer = fx.Tracer()
    graph = tracer.trace(run)
    for node in list(graph.nodes)[:-1]:
        node.meta["val"] = torch.empty(1 if "sum" in node.name else 1000)
    assert live_bytes(graph) == [4000, 8000, 4000, 4004, 4]  # the input, both, the result alone, its sum, that


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_holding_decoded_tensors_does_not_raise_the_peak(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    stock = nn.Sequential(Llama(), Llama())
    x = torch.randn(4, 128, 64, requires_grad=True)

    def peak() -> int:
        torch._dynamo.reset()
        ours = copy.deepcopy(stock)
        compress(ours, bits=4, compiled=compiled)
        for _ in range(2):
            used = measured(lambda: ours(x).square().mean(), CPU)
        return used.peak - used.kept

    once = peak()
    monkeypatch.setattr(stretches, "decode_once", lambda *_: None)
    assert once <= peak()


def test_the_output_of_attention_is_not_saved_beside_what_it_is_computed_from() -> None:
    """Query, key, value and the norm's input cross as codes; the output is computed again for the next layer, too."""
    model, x = Attention(), torch.randn(4, 64, 64)
    compress(model, bits=8)
    kept = bytes_in_graph(model(x).sum(), [x, *model.parameters()])
    codes, statistics = x.numel() * (1 + 4 / 64), 2 * 4 * x.numel() // 64
    assert kept <= 4 * codes + statistics
