"""Exports and traces hold the stock function, which every tool that reads them knows."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import actfit
from tests.kernels.saved import METHODS, each_method


class Model(nn.Module):
    """A model of all our kinds of modules, in training mode."""

    def __init__(self, options: dict) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 16), actfit.nn.GELU(**options), nn.Linear(16, 8), actfit.nn.Tanh())
        self.last = actfit.nn.ActLinear("silu", nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(actfit.functional.swiglu(y, y))


def stock(model: Model, x: Tensor) -> Tensor:
    y = torch.tanh(model.first[2](nn.functional.gelu(model.first[0](x))))
    return model.last.linear(nn.functional.silu(nn.functional.silu(y) * y))


@pytest.mark.parametrize(("method", "strict"), [("invact", True), ("fewbit", False), ("forward-ad", False)])
def test_torch_export(method: str, strict: bool) -> None:
    model, x = Model(METHODS[method]), torch.randn(5, 8, requires_grad=True)
    exported = torch.export.export(model, (x,), strict=strict, dynamic_shapes=({0: torch.export.Dim("rows")},))
    called = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert not [name for name in called if "actfit" in name]
    assert {"aten.gelu.default", "aten.tanh.default", "aten.silu.default"} <= set(called)
    for rows in (5, 9):
        other = torch.randn(rows, 8)
        assert torch.equal(exported.module()(other), stock(model, other))


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript")),
    reason="onnx or onnxscript is not installed",
)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # torch's own
def test_onnx(tmp_path: Path) -> None:
    import onnx

    torch.onnx.export(Model(METHODS["fewbit"]), (torch.randn(5, 8),), tmp_path / "model.onnx", dynamo=True)
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model)
    assert {node.domain for node in model.graph.node} == {""}
    assert {"Gelu", "Tanh"} <= {node.op_type for node in model.graph.node}


traced_by = pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")


@traced_by
@each_method
def test_jit_trace(options: dict) -> None:
    model, x = Model(options), torch.randn(5, 8, requires_grad=True)
    net = nn.Sequential(model.first, model.last)
    traced = torch.jit.trace(net, x)
    assert "actfit::" not in str(traced.inlined_graph)
    assert "aten::gelu" in str(traced.inlined_graph)
    with torch.no_grad():
        assert torch.equal(traced(x), net(x))


@pytest.mark.parametrize("use", ["module", "function"])
def test_fx_sees_one_call(use: str) -> None:
    nets = {
        "module": nn.Sequential(nn.Linear(3, 3), actfit.nn.GELU()),
        "function": lambda x: actfit.functional.gelu(x, method="fewbit"),
    }
    graph = torch.fx.symbolic_trace(nets[use])
    assert [node.op for node in graph.graph.nodes][-2] == "call_function"
    x = torch.randn(2, 3)
    assert torch.equal(graph(x), nets[use](x))
