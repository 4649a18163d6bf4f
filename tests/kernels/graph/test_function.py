"""Graphs as functions."""

import gc
import traceback
import weakref
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, fx, nn

from actfit.kernels.graph.function import function_of

aten = torch.ops.aten


def graph_of(build: Any, **attributes: Any) -> fx.GraphModule:
    graph, root = fx.Graph(), nn.Module()
    for name, value in attributes.items():
        setattr(root, name, value)
    build(graph)
    return fx.GraphModule(root, graph)


def take(given: dict[str, Any], place: slice) -> Tensor:
    """As users' Triton kernels, it takes a dictionary."""
    part: Tensor = given["x"][place]
    return part


def test_arguments_may_hold_tensors_constants_and_none() -> None:
    def build(graph: fx.Graph) -> None:
        x, y, _ = (graph.placeholder(name) for name in "xyz")
        whole = graph.call_function(aten.cat.default, ([x, graph.get_attr("held"), y], 1))
        rounded = graph.call_function(aten.add.Tensor, (whole, x), {"alpha": float("inf")})
        picked = graph.call_function(aten.index.Tensor, (rounded, [None, graph.get_attr("places")]))
        size = graph.call_function(aten.sym_size.int, (x, 0))
        part = graph.call_function(take, ({"x": picked, "of": 1}, slice(0, size, None)))
        graph.output(((part, None), size))

    module = graph_of(build, held=torch.ones(2, 1), places=torch.tensor([2, 0]))
    x, y = torch.randn(2, 1), torch.randn(2, 1)
    given = [x, y, None]
    ((got, nothing), size) = function_of(module)(given)
    expected = (torch.cat([x, torch.ones(2, 1), y], 1) + float("inf") * x)[:, [2, 0]]
    assert torch.equal(got, expected)
    assert (nothing, size, given) == (None, 2, [])


def test_each_tensor_is_freed_after_its_last_use() -> None:
    seen: list[list[bool]] = []
    held: list[weakref.ref[Tensor]] = []

    def look(x: Tensor) -> Tensor:
        seen.append([other() is not None for other in held])
        held.append(weakref.ref(made := x + 1))
        return made

    def build(graph: fx.Graph) -> None:
        first, _ = graph.placeholder("first"), graph.placeholder("unused")
        second = graph.call_function(look, (first,))
        third = graph.call_function(look, (second,))
        graph.output((graph.call_function(look, (third,)), second))

    given = [torch.zeros(1), torch.zeros(1)]
    held.extend(map(weakref.ref, given))
    results = function_of(graph_of(build))(given)
    assert [x.item() for x in results] == [3, 1]
    # first, unused, second, third
    assert seen == [[True, False], [False, False, True], [False, False, True, True]]


class Named(NamedTuple):
    x: Any


def test_what_it_does_not_know_is_refused() -> None:
    module = graph_of(lambda graph: graph.output(Named(graph.placeholder("x"))))
    with pytest.raises(NotImplementedError, match=r"lists, tuples and dictionaries, got .*Named"):
        function_of(module)
    module = graph_of(lambda graph: graph.output(graph.call_module("layer")), layer=nn.Identity())
    with pytest.raises(NotImplementedError, match="got call_module"):
        function_of(module)


def test_a_function_is_freed_with_its_constants() -> None:
    module = graph_of(lambda graph: graph.output(graph.get_attr("held")), held=torch.ones(2))
    run = function_of(module)
    held = weakref.ref(module.held)
    del module
    gc.collect()  # a graph's module holds itself
    assert held() is not None
    del run
    assert held() is None


def test_an_error_shows_its_operation() -> None:
    def build(graph: fx.Graph) -> None:
        graph.output(graph.call_function(aten.mm.default, (graph.placeholder("x"), graph.placeholder("y"))))

    run = function_of(graph_of(build))
    with pytest.raises(RuntimeError) as raised:
        run([torch.ones(2, 3), torch.ones(2, 3)])
    lines = traceback.format_exception(raised.value)
    assert any("<captured graph" in line and "mm_default" in line for line in lines)
