"""A captured graph as a function of Python: it empties the list of its inputs, and frees tensors after their last use.

The code that fx writes looks each operation up by its path, and calls it through a wrapper: half a microsecond more
for each of hundreds of calls a block.
"""

from collections import defaultdict
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from actfit.kernels import private

aten = torch.ops.aten
# Some kernels give other strides than graphs foresee, as a batch norm's of a transposed tensor does on a CPU: where a
# view is none of these, the same numbers are copied.
OF_ANY_STRIDES = {aten.view.default: aten.reshape.default, aten._unsafe_view.default: aten.reshape.default}


def function_of(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """The function of the list of the graph's inputs, which it empties."""
    known: dict[str, Any] = {}  # operations and constants, by the names that the text has for them
    names = {node: f"x{place}" for place, node in enumerate(module.graph.nodes)}

    def name_of(value: Any) -> str:
        name = f"c{len(known)}"
        known[name] = value
        return name

    def text_of(value: Any) -> str:
        if isinstance(value, fx.Node):
            return names[value]
        if not _nodes_in(value):
            return name_of(value)
        if isinstance(value, slice):
            return f"slice({', '.join(map(text_of, (value.start, value.stop, value.step)))})"
        inside = "".join(f"{text_of(part)}, " for part in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"

    dead = _dead_after(module.graph)
    inputs = module.graph.find_nodes(op="placeholder")
    lines = [*([f"{''.join(f'{names[node]}, ' for node in inputs)} = inputs"] if inputs else []), "inputs.clear()"]
    for node in module.graph.nodes:
        if node.op == "call_function":
            given = [text_of(value) for value in node.args]
            given += [f"{name}={text_of(value)}" for name, value in node.kwargs.items()]
            called = name_of(private.direct(OF_ANY_STRIDES.get(node.target, node.target)))
            lines.append(f"{names[node]} = {called}({', '.join(given)})")
        elif node.op == "get_attr":
            lines.append(f"{names[node]} = {name_of(attrgetter(node.target)(module))}")
        elif node.op == "output":
            lines.append(f"return {text_of(node.args[0])}")
        elif node.op != "placeholder":
            raise NotImplementedError(f"a captured graph has operations, inputs and constants, got {node.op}")
        lines += [f"del {', '.join(names[given] for given in dead[node])}"] if dead[node] else []
    exec(compile("def run(inputs):\n    " + "\n    ".join(lines), "<captured graph>", "exec"), known)
    made: Callable[[list[Any]], Any] = known.pop("run")  # else it would hold itself
    return made


def _dead_after(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """By a node, what is not read after it."""
    dead = defaultdict[fx.Node, list[fx.Node]](list)
    last: dict[fx.Node, fx.Node] = {}
    for node in reversed(graph.nodes):
        for given in (node, *node.all_input_nodes):
            last.setdefault(given, node)
    for given, node in last.items():
        if node.op != "output":
            dead[node].append(given)
    return dead


def _nodes_in(value: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return found
