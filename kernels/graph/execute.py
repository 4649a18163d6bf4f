"""Run a captured graph by PyTorch's own kernels, one operation after the other, without code generation.

Gradients of results that a loss does not use are undefined in backward, not zeros, as autograd has it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import SymInt, Tensor, fx

from actfit.kernels import private
from actfit.kernels.compression.nodes import is_mutable, is_tangent
from actfit.kernels.errors import KernelError

aten = torch.ops.aten
Run = Callable[[list[Any]], Any]


def execute(module: fx.GraphModule) -> Run:
    """A function that runs the graph; it takes its inputs out of the list, and frees each tensor after its last use."""
    module.graph.set_codegen(private.boxed_codegen()())
    module.recompile()
    forward = module.forward

    def run(inputs: list[Any]) -> Any:
        if not torch.is_grad_enabled():  # as within autograd's own functions
            return forward(inputs)
        with torch.no_grad():
            return forward(inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def execute_backward(module: fx.GraphModule) -> Run:
    """As `execute`; where gradients of results are None, by a graph without them, made at the first such call."""
    graphs: dict[frozenset[int], Run] = {frozenset(): execute(module)}
    places = [place for place, node in enumerate(module.graph.find_nodes(op="placeholder")) if is_tangent(node)]

    def run(given: list[Any]) -> Any:
        undefined = frozenset(place for place in places if given[place] is None)
        if undefined not in graphs:
            graphs[undefined] = execute(_without(module, undefined))
        return graphs[undefined](given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _without(module: fx.GraphModule, undefined: frozenset[int]) -> fx.GraphModule:
    """The graph of backward where the gradients in some places of its inputs are None; it takes the same inputs.

    Operations on gradients are linear in them: none has no result, a sum is what it has, and others read zeros where
    they have some. That is what autograd does, but for an autograd.Function, which gets zeros for all that it lacks.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    inputs = graph.find_nodes(op="placeholder")
    of_gradients = {node for node in inputs if is_tangent(node)}
    gone = {inputs[place] for place in undefined}
    for node in list(graph.nodes):
        if node.op == "output":
            node.args = (fx.node.map_arg(node.args[0], lambda result: None if result in gone else result),)
        elif any(argument in of_gradients for argument in node.all_input_nodes):
            of_gradients.add(node)
            _let_lack(node, [argument for argument in node.all_input_nodes if argument in of_gradients], gone)
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)


def _let_lack(node: fx.Node, gradients: list[fx.Node], gone: set[fx.Node]) -> None:
    """Let a node do without the gradients that are gone, or go itself."""
    left, value = [gradient for gradient in gradients if gradient not in gone], node.meta.get("val")
    if len(left) == len(gradients):
        return
    if not left and not is_mutable(node) and not isinstance(value, int | SymInt):
        gone.add(node)
    elif left and node.target is aten.add.Tensor and set(node.args) == set(gradients) and not node.kwargs:
        node.replace_all_uses_with(left[0])
    else:
        for gradient in set(gradients) & gone:
            with node.graph.inserting_before(node):
                node.replace_input_with(gradient, _zeros(node.graph, gradient.meta["val"], gone))


def _zeros(graph: fx.Graph, value: Tensor, gone: set[fx.Node]) -> fx.Node:
    """Zeros in place of a value; its sizes that change are computed from those of the inputs."""
    sizes = [size.node.expr if isinstance(size, SymInt) else size for size in value.shape]
    lacking = {symbol for size in sizes if not isinstance(size, int) for symbol in size.free_symbols}
    known: dict[Any, fx.Node] = {}
    for node in set(graph.find_nodes(op="placeholder")) - gone:
        given = node.meta.get("val")
        for dim, size in enumerate(given.shape if isinstance(given, Tensor) else [given]):
            if isinstance(size, SymInt) and size.node.expr in lacking:
                lacking.remove(size.node.expr)
                sized = graph.call_function(aten.sym_size.int, (node, dim)) if isinstance(given, Tensor) else node
                known[size.node.expr] = sized
    if lacking:
        raise KernelError(
            "results of a block that is called with sizes that change must all have gradients where one of several is"
            f" read alone, got None for one of size {tuple(value.shape)}; call remove() of the model's handle"
        )
    return graph.call_function(_filled_with_zeros(sizes, list(known), value), tuple(known.values()))


def _filled_with_zeros(sizes: list[Any], symbols: list[Any], value: Tensor) -> Callable[..., Tensor]:
    dtype, device = value.dtype, value.device

    def zeros(*numbers: int) -> Tensor:
        values = dict(zip(symbols, numbers, strict=True))
        shape = [size if isinstance(size, int) else int(size.subs(values)) for size in sizes]
        return torch.zeros(shape, dtype=dtype, device=device)

    return zeros
