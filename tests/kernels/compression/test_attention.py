"""Attention, whose backward pass needs the log-sum-exp and the output of the decoded tensors."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from actfit.kernels.compression import forms
from actfit.kernels.compression.attention import inputs_beside_log_sum_exp, recompute_attention
from actfit.kernels.compression.crossing import Crossing, crossings
from actfit.kernels.compression.cut import cut_of
from actfit.kernels.compression.forms import Whole
from actfit.kernels.compression.nodes import arguments_of
from actfit.kernels.graph.codes import decode
from actfit.kernels.graph.splice import put_codes
from actfit.kernels.methods.every_tensor import EveryTensor
from tests.kernels.compression.cuts import full_width, through_codes
from tests.kernels.compression.graphs import code_from, compiled, partitioner, stock

aten = torch.ops.aten
SHAPE = (2, 2, 64, 32)
SHARP = 6.0  # a factor of the logits: some rows have a probability near 1

pytestmark = pytest.mark.usefixtures("small_and_seeded")


def gradients(function: Callable[..., Tensor], upstream: Tensor, *inputs: Tensor) -> list[Tensor]:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    return list(torch.autograd.grad(function(*leaves), leaves, upstream))


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.ones(64, 64, dtype=torch.bool).tril(20)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.2)


@pytest.mark.parametrize(("function", "bits"), [(plain, 4), (causal, 2), (masked, 2)])
def test_gradients_are_those_of_the_decoded_tensors(function: Callable[..., Tensor], bits: int) -> None:
    """However sharp; with the output and log-sum-exp of exact tensors, they would be gradients of no function."""
    q, k, v, upstream = torch.randn(4, *SHAPE)
    q = SHARP * q
    got = gradients(compiled(function, partitioner(bits=bits)), upstream, q, k, v)
    decoded = [through_codes(gradient, bits)[0] for gradient in (q, k, v)]
    for gradient, exact in zip(got, gradients(function, upstream, *decoded), strict=True):
        # The same operation on the same numbers; BLAS may sum in another order where memory is aligned otherwise.
        torch.testing.assert_close(
            gradient, exact, rtol=0, atol=64 * torch.finfo(gradient.dtype).eps * float(exact.abs().max())
        )


class Projected(nn.Module):
    """Attention on the output of attention, whose own output a product and an activation need, too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.key(x), self.value(x)
        y = F.scaled_dot_product_attention(self.query(x), k, v)
        y = F.scaled_dot_product_attention(y, k, v, is_causal=True)
        result: Tensor = self.out(F.relu(y)) + F.silu(y)
        return result


def weight_gradients(model: nn.Module, cut: Callable[..., Any], x: Tensor, upstream: Tensor) -> list[Tensor]:
    model.zero_grad()
    compiled(model, cut)(x).backward(upstream)
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize("dynamic", [False, True])
def test_wiring_of_attention_upon_attention(dynamic: bool) -> None:
    """With uncoded tensors in place of codes, all gradients are stock's, bit for bit."""
    width = 256 if dynamic else 32  # groups are cut out of a row whose length is known
    model, x, upstream = Projected(width), *torch.randn(2, 2, 2, 64, width)
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0)
    exact = weight_gradients(model, stock, x, upstream)
    cut = partitioner()
    with full_width():
        assert all(map(torch.equal, weight_gradients(model, cut, x, upstream), exact))
    crossing_forms = [row.form for row in cut.graphs[0].crossings]
    assert crossing_forms.count("computed again") == 4  # two outputs and log-sum-exps
    assert set(crossing_forms) == {
        "computed again",
        "4 bits",
        "1 bit",
    }  # query, key and value; relu's mask; x is a batch


def test_an_output_that_backward_divides_by_crosses() -> None:
    """And attention is computed again beside it."""
    cut = partitioner()
    q, k, v, upstream = torch.rand(4, *SHAPE)
    with full_width():
        got = gradients(compiled(lambda *qkv: plain(*qkv).log(), cut), upstream, q, k, v)
    assert all(map(torch.equal, got, gradients(lambda *qkv: plain(*qkv).log(), upstream, q, k, v)))
    (output,) = [row for row in cut.graphs[0].crossings if row.form == "whole"]
    assert (output.shape, output.reason) == (SHAPE, "backward divides by it")
    assert [row.shape for row in cut.graphs[0].crossings if row.form == "computed again"] == [SHAPE[:-1]]


def test_where_all_is_exact_nothing_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    code_from(1 << 20, monkeypatch)
    cut = partitioner()
    gradients(compiled(plain, cut), *torch.randn(4, *SHAPE))
    assert {row.form for row in cut.graphs[0].crossings} == {"whole"}
    assert len(cut.graphs[0].crossings) == 5


GPU: dict[
    str, tuple[dict[str, Any], tuple[int, int]]
] = {  # arguments of attention, and positions of random states in its results
    "flash": ({"is_causal": True}, (6, 7)),
    "efficient": ({"attn_bias": None, "compute_log_sumexp": True, "scale": 0.3}, (2, 3)),
    "cudnn": ({"attn_bias": None, "compute_log_sumexp": True, "is_causal": True}, (6, 7)),
}


def of_a_gpu(kind: str, dropout: float) -> tuple[list[Crossing], fx.Node, list[fx.Node]]:
    """Crossings, the backward pass, and the attention in the backward graph, on fake tensors."""
    attention = getattr(aten, f"_scaled_dot_product_{kind}_attention").default
    backward_pass = getattr(aten, f"_scaled_dot_product_{kind}_attention_backward").default
    given = {**GPU[kind][0], "dropout_p": dropout}
    forward, backward = fx.Graph(), fx.Graph()
    with FakeTensorMode():
        value = torch.empty(SHAPE, dtype=torch.bfloat16, device="cpu")
        results = attention(value, value, value, **given)
        saved = {name: forward.placeholder(name) for name in ("query", "key", "value")}
        source = forward.call_function(attention, tuple(saved.values()), given)
        for name, place in zip(
            ("out", "logsumexp", "philox_seed", "philox_offset"), (0, 1, *GPU[kind][1]), strict=True
        ):
            saved[name] = forward.call_function(operator.getitem, (source, place))
            saved[name].meta["val"] = results[place]
        for node in (source, *source.args):
            node.meta["val"] = results if node is source else value
        forward.output((saved["out"], *saved.values()))
        received = {name: backward.placeholder(node.name) for name, node in saved.items()}
        upstream = backward.placeholder("upstream")
        for name, node in received.items():
            node.meta["val"] = saved[name].meta["val"]
        upstream.meta["val"] = value
        arguments = {"grad_out": upstream, "grad_out_": upstream, **given, **received, "max_q": 64, "max_k": 64}
        arguments["grad_input_mask"] = [True, True, True, False]
        names = [argument.name for argument in backward_pass._schema.arguments]
        last = backward.call_function(backward_pass, (), {name: arguments.get(name) for name in names})
        backward.output(tuple(backward.call_function(operator.getitem, (last, place)) for place in range(3)))
        modules = [fx.GraphModule(nn.Module(), graph) for graph in (forward, backward)]
        cut = cut_of(modules[0].graph, modules[1].graph, 1, frozenset(), EveryTensor(4), 64)
        put_codes(*modules, cut, "nearest")
        rows = crossings(cut, "nearest")
    (last,) = modules[1].graph.find_nodes(op="call_function", target=backward_pass)
    return rows, last, list(modules[1].graph.find_nodes(op="call_function", target=attention))


@pytest.mark.parametrize("kind", GPU)
def test_a_gpus_attention_is_computed_again(kind: str) -> None:
    rows, backward_pass, (again,) = of_a_gpu(kind, 0.0)
    # The last are random states, then output and log-sum-exp.
    assert [row.form for row in rows] == [*["4 bits"] * 3, *["whole"] * 2, *["computed again"] * 2]
    given, own = arguments_of(backward_pass), arguments_of(again)
    assert [(given[name].target, given[name].args) for name in ("out", "logsumexp")] == [
        (operator.getitem, (again, place)) for place in (0, 1)
    ]
    assert all(own.pop(name).target is decode for name in ("query", "key", "value"))
    assert own == {**GPU[kind][0], "dropout_p": 0.0}


@pytest.mark.parametrize("kind", GPU)
def test_attention_with_dropout_is_not(kind: str) -> None:
    """It would drop other elements. Tensors beside an exact log-sum-exp in its backward pass get the finest codes."""
    rows, _, again = of_a_gpu(kind, 0.1)
    assert not again
    assert [row.form for row in rows][:5] == [*["8 bits"] * 3, *["whole"] * 2]
    assert [row.reason for row in rows[3:5]] == ["forward returns it", "backward needs it exactly"]


def test_flex_attention_is_not() -> None:
    """It contains a graph of its own, and runs on GPUs only."""
    forward, backward = fx.Graph(), fx.Graph()
    names = ("query", "key", "value", "bias")
    tensors = [forward.placeholder(name) for name in names]
    score = forward.get_attr("score")
    made = forward.call_function(flex_attention, (*tensors[:3], score, (), 1.0, {}, (tensors[3],)))
    tensors += [forward.call_function(operator.getitem, (made, place)) for place in (0, 1)]
    saved = [backward.placeholder(name) for name in (*names, "out", "logsumexp")]
    upstream = backward.placeholder("upstream")
    given = (*saved[:3], *saved[4:], upstream, None, None, None, (), 1.0, {}, (saved[3],))
    backward.call_function(flex_attention_backward, given)
    pairs = dict(zip(tensors, saved, strict=True))
    assert recompute_attention(backward, pairs, set(tensors[:5])) == pairs
    assert inputs_beside_log_sum_exp(backward, set(saved)) == set(saved)
    saved[5].meta["val"] = torch.empty(SHAPE)
    assert forms.form_of(saved[5], saved[5], 4, 64) == Whole("backward needs it exactly")
