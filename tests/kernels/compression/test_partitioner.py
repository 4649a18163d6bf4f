"""Which tensors cross from forward into backward, in models that run operation by operation."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import actfit
from actfit import KernelError
from actfit.kernels.compression import private
from actfit.kernels.compression.crossing import Crossing
from actfit.kernels.graph.codes import drawing
from tests.kernels.compression import models
from tests.kernels.compression.cuts import Step, full_width, same
from tests.kernels.compression.graphs import code_from, compiled, error, gradients, partitioner, stock

pytestmark = pytest.mark.usefixtures("small_and_seeded")


def crossing(model: nn.Module, *inputs: Tensor, **settings: Any) -> list[Crossing]:
    """The crossings of a model's single graph."""
    cut = partitioner(**settings)
    gradients(model, compiled(model, cut), *inputs)
    (graph,) = cut.graphs
    return list(graph.crossings)


# Dynamo looks at the gradient of such an input.
an_activation_as_an_input = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
each_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "mlp" else pytest.mark.slow) for name in models.MODELS]
)


@each_model
def test_forward_is_exact_and_gradients_are_as_wrong_as_codes(name: str) -> None:
    """With uncoded tensors in place of codes, gradients are stock's, too, bit for bit.

    8 bits have steps a 17th as large as 4 bits, 255 by 15; to first order the error is as much less.
    """
    model, inputs = models.build(name)
    step = Step(model, stock)
    y = step.run(*inputs)
    (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
    exact = step.again(stock)
    with full_width():
        assert same(step.again(partitioner()), exact)
    fine, coarse = (step.again(partitioner(bits=bits)) for bits in (8, 4))
    assert all(map(torch.equal, coarse[0], exact[0]))
    assert error(fine[1], exact[1]) < error(coarse[1], exact[1]) / (17 / 2)  # a half, for what is of higher order


@each_model
def test_bytes_are_what_autograd_saves(name: str) -> None:
    """Bytes of all saved tensors except parameters, buffers and batches."""
    model, inputs = models.build(name)
    cut = partitioner()
    y = compiled(model, cut)(*inputs)
    known = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers(), *inputs)}
    saved = [tensor for tensor in y.grad_fn.saved_tensors if tensor is not None and tensor.data_ptr() not in known]
    (graph,) = cut.graphs
    assert graph.after == sum(tensor.nbytes for tensor in saved)
    assert graph.before > graph.after


def test_the_side_of_a_rectifier_is_exact() -> None:
    """The gradient of the bias before it depends on nothing else, so it is exact for any codes."""
    model, x = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), torch.randn(64, 32)
    exact = gradients(model, compiled(model, stock), x)
    approximate = gradients(model, compiled(model, partitioner(bits=2)), x)
    assert torch.equal(approximate[1], exact[1])
    assert not torch.equal(approximate[2], exact[2])


def test_probabilities_of_targets_are_whole() -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(32, 1000)

        def forward(self, x: Tensor) -> Tensor:
            return F.cross_entropy(self.head(x), torch.arange(len(x)), reduction="none")

    rows = crossing(Classifier(), torch.randn(64, 32))
    assert [row.form for row in rows if "log_softmax" in row.operation] == ["whole"]


def test_other_probabilities_have_codes_of_their_roots() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.values, self.out = (nn.Linear(64, 64) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.out(self.gate(x).softmax(-1) * self.values(x))
            return result

    rows = crossing(Mixed(), torch.randn(64, 64))
    (coded,) = [row for row in rows if row.form == "4 bits of roots"]
    assert (coded.operation, coded.error) == ("aten._softmax", 0.0)


def test_dropout_crosses_in_bits() -> None:
    rows = crossing(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64)), torch.randn(64, 64))
    (mask,) = [row for row in rows if row.dtype == "bool"]
    assert (mask.form, mask.after) == ("1 bit", mask.before // 8)


def test_statistics_are_whole() -> None:
    rows = crossing(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8)), torch.randn(128, 64))
    assert {(row.form, row.reason) for row in rows if row.shape[-1] == 1} == {("whole", "a statistic")}


def test_masks_of_attention_are_exact() -> None:
    """Otherwise their infinities would spread to the gradient, and their zeros would be inexact."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.score = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            q = self.query(x)
            hidden = (self.score(x).detach() > 1) & (torch.arange(64) > 0)
            mask = torch.zeros(len(x), 64, 64).masked_fill(hidden, -torch.inf).cumsum(-1)  # too costly to compute again
            return F.scaled_dot_product_attention(*(q.view(-1, 64, 2, 32).transpose(1, 2),) * 3, mask[:, None])

    model, x = Masked(), torch.randn(4, 64, 64)
    exact = gradients(model, compiled(model, stock), x)
    assert error(gradients(model, compiled(model, partitioner(bits=8)), x), exact) < 0.05


@an_activation_as_an_input
def test_batches_are_not_counted_and_inputs_with_a_gradient_are_coded() -> None:
    model = nn.Linear(64, 64)
    assert crossing(model, torch.randn(64, 64)) == []
    (row,) = crossing(model, torch.randn(64, 64, requires_grad=True) * 2)
    assert row.form == "4 bits"


@pytest.mark.slow
@an_activation_as_an_input
def test_each_graph_has_its_own_report() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = models.mlp(), models.mlp()

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            torch._dynamo.graph_break()
            y: Tensor = self.second(x)
            return y

    model, x, cut = Broken(), torch.randn(64, 32), partitioner()
    run = compiled(model, cut)
    exact = gradients(model, model, x)
    assert error(gradients(model, run, x), exact) < 0.5
    assert len(cut.graphs) == 2
    assert "an input" in {row.operation for row in cut.graphs[1].crossings}


@pytest.mark.slow
def test_sizes_may_change() -> None:
    """One graph for all sizes; groups lie in the part of each row whose size is known."""
    model, cut = nn.Sequential(nn.Linear(32, 768), nn.GELU(), nn.Linear(768, 32)), partitioner(bits=8)
    run = compiled(model, cut, dynamic=True)
    for batch in (64, 100, 37):
        x = torch.randn(batch, 32)
        assert error(gradients(model, run, x), gradients(model, model, x)) < 0.05
    (graph,) = cut.graphs
    assert {row.form for row in graph.crossings} == {"8 bits"}


@pytest.mark.slow
def test_stochastic_rounding_is_seeded_by_pytorch() -> None:
    model, x = models.mlp(), torch.randn(64, 32)
    run = compiled(model, partitioner(bits=2, rounding="stochastic"))

    def drawn(seed: int) -> list[Tensor]:
        drawing.cache_clear()  # as in a new process
        torch.manual_seed(seed)
        return gradients(model, run, x)

    assert all(map(torch.equal, drawn(1), drawn(1)))
    assert not all(map(torch.equal, drawn(1), drawn(2)))


@pytest.mark.slow
def test_autocast() -> None:
    model, x, cut = models.mlp(), torch.randn(64, 32), partitioner(bits=8)

    def run(model: Callable[..., Tensor]) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return gradients(module, model, x)

    module = model
    assert error(run(compiled(model, cut)), run(compiled(model, stock))) < 0.05
    assert {row.dtype for row in cut.graphs[0].crossings} == {"bfloat16"}


@pytest.mark.slow
def test_checkpointed_regions_stay_checkpointed() -> None:
    """Only the input of the region crosses, coded."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 64), models.mlp(64)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint(self.second, self.first(x), use_reentrant=False)
            return y

    (row,) = crossing(Checkpointed(), torch.randn(64, 64))
    assert (row.module, row.form) == ("first", "4 bits")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("L['self']._orig_mod.layers.0.gate", "layers.0.gate"),
        ("G['model'].layers.0.gate", "layers.0.gate"),
        ("L['self']", ""),
        # Dynamo of torch 2.9 writes so.
        ("L['self']._modules['layers']._modules['0'].gate", "layers.0.gate"),
        ("L['fn']._modules['0']", "0"),
    ],
)
def test_module_names(path: str, name: str) -> None:
    assert private.module_name(path) == name


@pytest.mark.parametrize("bits", [1, 9, "4", True, 4.0])
def test_wrong_bits(bits: Any) -> None:
    with pytest.raises(KernelError, match="bits must be a whole number from 2 to 8"):
        actfit.options(bits=bits)


@pytest.mark.parametrize("rounding", ["up", 1])
def test_wrong_rounding(rounding: Any) -> None:
    with pytest.raises(KernelError, match="rounding must be"):
        actfit.options(rounding=rounding)


@pytest.mark.parametrize("other", [nn.Linear(2, 2), torch.relu, 5], ids=["module", "function", "number"])
def test_what_was_not_compiled_has_no_report(other: Any) -> None:
    with pytest.raises(KernelError, match="compiled must be what"):
        actfit.report(other)


@pytest.mark.parametrize("has_gpu", [False, True])
def test_options_are_inductors(has_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else torch.compile refuses them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    options = actfit.options()
    assert options.keys() <= set(torch._inductor.list_options())
    assert ("allow_buffer_reuse" in options, "reorder_for_peak_memory" in options) == (has_gpu, not has_gpu)


def test_sizes_for_which_much_less_is_saved_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here of batches whose tensors are too small for codes."""
    code_from(4096, monkeypatch)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    cut = partitioner(bits=4)
    run = compiled(model, cut, dynamic=False)
    run(torch.randn(128, 64))
    run(torch.randn(96, 64))  # as good
    with pytest.warns(UserWarning, match=r"sizes should not change .* saves 100% of .* one before 1\d%"):
        run(torch.randn(32, 64))
    run(torch.randn(16, 64))
    assert len(cut.graphs) == 4
