"""A converted model compiled before and after, and exported."""

import itertools
from typing import Any

import pytest
import torch

from kernels import convert, saved_bytes
from tests.kernels.conversion.torch_models import (
    MODELS,
    ROUNDING,
    batch,
    build,
    each_model,
    equal,
    gradients,
    near,
)
from tests.kernels.saved import METHODS
from tests.tiers import in_ci

pytestmark = pytest.mark.usefixtures("afresh")

# What is captured depends on the model and the order, which aot_eager shows. Inductor takes long; what it makes of each
# method is in test_torch_compile.
# The method matters less: one shows every model in every order, the others two of them.
COMPILED = [
    *itertools.product(METHODS, ["aot_eager"], ["before", "after"], MODELS),
    *(("fewbit", "inductor", "before", "modules"), ("invact", "inductor", "after", "calls")),
]
OF_EACH_METHOD = (("before", "modules"), ("after", "calls"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "backend", "order", "kind"),
    in_ci(COMPILED, lambda case: case[0] == "fewbit" or case[2:] in OF_EACH_METHOD),
)
def test_compile(method: str, backend: str, order: str, kind: str) -> None:
    """In one graph, with the gradients of eager, keeping what eager keeps."""
    options: dict[str, Any] = METHODS[method]
    model, eager = build(kind), build(kind)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    stock = gradients(compiled, model) if order == "after" else None  # so there is code, which must not be run again
    report = convert(compiled if order == "after" else model, **options)
    convert(eager, **options)
    got, expected = gradients(compiled, model), gradients(eager, eager)
    # By a formula in y gradients are made by operations of the ops' own, in eager, and round otherwise.
    is_exact = backend == "aot_eager" and not options["method"].startswith("invact")
    assert equal(got, expected) if is_exact else near(got, expected, ROUNDING)
    if options["method"] == "fewbit":
        assert saved_bytes(compiled, batch()).total == saved_bytes(eager, batch(), fake=False).total
    report.revert()
    again = gradients(compiled, model)
    plain = build(kind)
    assert near(again, gradients(plain, plain), ROUNDING) if stock is None else equal(again, stock)


@each_model
def test_auto_after_compile(kind: str) -> None:
    """It is the model within that is measured, in eager."""
    compiled, eager = torch.compile(build(kind), backend="aot_eager"), build(kind)
    compiled(batch())
    report, expected = convert(compiled, inputs=batch()), convert(eager, inputs=batch())
    assert report.sites == expected.sites
    assert report.converted


def test_module_compile() -> None:
    """`Module.compile`, which wraps nothing."""
    model, eager = build("a call"), build("a call")
    model.compile(backend="aot_eager", fullgraph=True)
    stock = gradients(model, model)
    for module in (model, eager):
        convert(module, "fewbit")
    assert not near(stock, got := gradients(model, model), 1e-3)
    assert equal(got, gradients(eager, eager))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kind", "strict"),
    [
        *itertools.product(["invact"], MODELS, [True, False]),
        *itertools.product(sorted(METHODS.keys() - {"invact"}), ["calls"], [True]),
    ],
)
def test_export(method: str, kind: str, strict: bool) -> None:
    """What is exported is the stock model."""
    model = build(kind)
    convert(model, **METHODS[method])
    exported = torch.export.export(model, (batch(),), strict=strict)
    called = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    assert "aten.gelu.default" in called
    assert not [name for name in called if "actfit" in name or "kernels" in name]
    with torch.no_grad():
        # x * sigmoid(x) is exported as silu(x): the same but for a rounding.
        assert near([exported.module()(batch())], [build(kind)(batch())], 0 if kind != "calls" else ROUNDING)
