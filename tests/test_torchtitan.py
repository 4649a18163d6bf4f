"""The example for torchtitan, on a graph as its GraphTrainer traces it; without torchtitan with a stand-in."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy

ROOT = Path(__file__).parents[1]
PLACE = "torchtitan.experiments.graph_trainer"
WIDTH, ROWS, BLOCKS = 64, 48, 3
CONFIG = SimpleNamespace(parallelism=SimpleNamespace(fsdp_reshard_after_forward="default", pipeline_parallel_degree=1))


def default(module: fx.GraphModule, *, config: Any) -> fx.GraphModule:
    """As torchtitan's: products are saved."""
    for node in module.graph.nodes:
        if node.op == "call_function" and not node.meta.get("autograd_backward"):
            saved = node.target in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE
    return module


def stand_ins() -> Iterator[ModuleType]:
    """Modules with what the example uses of torchtitan 0.3: the registry, and a pass that recomputes nothing."""
    parts = PLACE.split(".")
    for count in range(1, len(parts) + 1):
        yield ModuleType(".".join(parts[:count]))
    registry = ModuleType(f"{PLACE}.registry")
    policies: Any = {"default": default}
    registry.MEMORY_POLICY_REGISTRY = policies  # type: ignore[attr-defined]
    registry.register_memory_policy = lambda key: lambda function: policies.setdefault(key, function)  # type: ignore[attr-defined]
    yield registry
    remat = ModuleType(f"{PLACE}.selective_activation_remat")
    remat.selective_activation_remat_pass = lambda module: module  # type: ignore[attr-defined]
    yield remat


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example, imported from its file."""
    try:
        importlib.import_module(f"{PLACE}.memory_policy")  # registers "default"
    except ImportError:
        for module in stand_ins():
            monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location("torchtitan_8bits", ROOT / "examples" / "torchtitan_8bits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def traced(x: Tensor) -> tuple[fx.GraphModule, list[Tensor]]:
    """Forward, loss and backward in one graph, whose nodes are marked as torchtitan's tracer marks them."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(BLOCKS)]
    model = nn.Sequential(*layers)
    weights = [weight.detach().requires_grad_() for weight in model.parameters()]

    def step(weights: list[Tensor], x: Tensor) -> tuple[Tensor, ...]:
        names = [name for name, _ in model.named_parameters()]
        loss = torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (x,)).square().mean()
        return (loss, *torch.autograd.grad(loss, weights))

    module = make_fx(step)(weights, x)
    nodes = list(module.graph.nodes)
    loss = nodes[-1].args[0][0]
    for node in nodes[nodes.index(loss) + 1 : -1]:
        node.meta["autograd_backward"] = True
    return module, weights


def crossing(module: fx.GraphModule) -> dict[str, int]:
    """Bytes of each result of forward that backward reads."""
    return {
        node.name: node.meta["val"].nbytes
        for node in module.graph.nodes
        if node.op == "call_function"
        and not node.meta.get("autograd_backward")
        and any(user.meta.get("autograd_backward") for user in node.users)
        and str(node.target) != "aten.t.default"  # a view of a weight
    }


def test_backward_reads_8_bits(example: Any) -> None:
    x = torch.randn(ROWS, WIDTH)
    module, weights = traced(x)
    with torch.no_grad():  # as torchtitan runs it: backward is in the graph
        before, exact = crossing(module), module(weights, x)
        coded = example.MEMORY_POLICY_REGISTRY["actfit_8bits"](module, config=CONFIG)
        results = coded(weights, x)
    assert torch.equal(results[0], exact[0])
    products = [name for name in before if name.startswith("addmm")]
    assert len(products) >= 2 * BLOCKS - 1
    after = crossing(coded)
    assert not set(products) & set(after)
    # A group of 64 stores 8 bits each, and 16 bits twice, where it had 32 each.
    saved, stored = sum(before[name] for name in products), sum(after[name] for name in set(after) - set(before))
    assert stored == saved * (64 * 8 + 32) // (64 * 32)
    for gradient, wanted in zip(results[1:], exact[1:], strict=True):
        # The largest error of a value is half a step, 1/255 of its group's range, of about 5 deviations: 1 % of one.
        assert 0 < (gradient - wanted).norm() < 0.01 * wanted.norm()


def test_what_is_no_activation_stays_whole(example: Any) -> None:
    module, _ = traced(torch.randn(ROWS, WIDTH))
    module = example.MEMORY_POLICY_REGISTRY["default"](module, config=CONFIG)
    stored = [node for node in module.graph.nodes if example.is_stored(node)]
    assert stored
    node = stored[0]
    for change in ({"recompute": CheckpointPolicy.PREFER_RECOMPUTE}, {"autograd_backward": True}):
        kept = dict(node.meta)
        node.meta |= change
        assert not example.is_stored(node)
        node.meta = kept
    for value in (torch.ones(64, dtype=torch.int64), torch.ones(63)):
        node.meta["val"] = value
        assert not example.is_stored(node)
