"""Copies that capture adds."""

import pytest
import torch
from torch import Tensor, fx, nn

from actfit import compress
from actfit.kernels.graph.copies import without_copies, without_detours
from tests.kernels.graph.nets import batch, pair
from tests.kernels.saved import bytes_in_graph

aten = torch.ops.aten


def copies_left(*, read_twice: bool = False, transposed: bool = False, returned: bool = False) -> int:
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(aten.exp.default, (x,))
    shown = graph.call_function(aten.t.default, (made,)) if transposed else made
    copy = graph.call_function(aten.clone.default, (shown,))
    read = graph.call_function(aten.neg.default, (copy,))
    graph.output((read, made) if read_twice else copy if returned else read)
    for node in graph.nodes:
        node.meta["val"] = torch.empty(4, 4)
    if transposed:
        shown.meta["val"] = shown.meta["val"].t()
    without_copies(graph)
    return len(graph.find_nodes(op="call_function", target=aten.clone.default))


def test_copies_of_what_nothing_else_reads_are_left_out() -> None:
    assert copies_left() == 0
    assert copies_left(read_twice=True) == 1
    assert copies_left(returned=True) == 1  # it may be written into
    assert copies_left(transposed=True) == 1  # it has other strides


@pytest.mark.parametrize("returned", [False, True])
def test_matrices_that_are_transposed_back_and_views_that_change_nothing_are_left_out(returned: bool) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    product = graph.call_function(aten.mm.default, (x, x))
    back = graph.call_function(aten.t.default, (graph.call_function(aten.t.default, (product,)),))
    same = graph.call_function(aten.view.default, (back, [3, 3]))
    other = graph.call_function(aten.view.default, (back, [9]))
    graph.output((same, other))  # the first one of forward, or both of backward
    for node in graph.nodes:
        node.meta["val"] = torch.empty(9) if node is other else torch.empty(3, 3)
    without_detours(graph, int(returned))
    assert same not in graph.nodes or returned  # it may be written into
    assert other in graph.nodes
    assert back not in graph.nodes


def test_a_copy_of_an_input_stays() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(aten.clone.default, (x,)))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(4, 4)
    without_copies(graph)
    assert graph.find_nodes(op="call_function", target=aten.clone.default)


class Shows(nn.Module):
    """Gives back a view of what it saves for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).exp().t()


def test_results_that_are_views_may_be_changed_in_place() -> None:
    """Stock raises an error, as it saved what the view shows; a copy changes nothing that is saved."""
    stock, ours, _ = pair(Shows())
    changed = ours(batch(64)).mul_(2)
    changed.square().sum().backward()
    stock(batch(64)).mul(2).square().sum().backward()
    for p, q in zip(ours.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)  # torch 2.9 sums a bias's gradient in another order


def test_a_block_that_changes_what_it_is_given() -> None:
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.ones(64))

        def forward(self, x: Tensor) -> None:
            x.mul_(self.by.exp())

    of_each = []
    for model in pair(Scales())[:2]:
        x = batch() * model.by
        model(x)
        loss = x.square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        of_each.append(model.by.grad)
    assert torch.equal(*of_each)


def test_dropout_of_nothing_changes_nothing() -> None:
    """Nor does what is written into its result."""

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop = nn.Linear(64, 64), nn.Dropout(0.0)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.drop(self.first(x)).mul_(3)
            return result

    torch.manual_seed(0)
    model, x = Dropped(), torch.randn(64, 64)
    stock = model(x)
    stock.sum().backward()
    expected, _ = [weight.grad for weight in model.parameters()], model.zero_grad(set_to_none=True)
    compress(model)
    ours = model(x)
    assert bytes_in_graph(ours, [x, *model.parameters()]) == 0
    ours.sum().backward()
    assert torch.equal(ours, stock)
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        assert isinstance(weight.grad, Tensor)
        assert isinstance(gradient, Tensor)
        assert torch.equal(weight.grad, gradient)


def test_results_may_be_written_into() -> None:
    """Of a view of a result, dropout with p = 0 gives a copy."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.0)), torch.randn(4, 16, 64)
    compress(model)
    made = model(x)
    made += x
    made.sum().backward()
    assert made.untyped_storage().nbytes() == made.nbytes
