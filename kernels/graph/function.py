"""A captured graph as a function of Python: it empties the list of its inputs, and frees tensors after their last use.

The code that fx writes looks each operation up by its path, and calls it through a wrapper: half a microsecond more
for each of hundreds of calls a block.
"""

import linecache
import re
import weakref
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from actfit.kernels import private

aten = torch.ops.aten
# Some kernels give other strides than graphs foresee, as a batch norm's of a transposed tensor does on a CPU: where a
# view is none of these, the same numbers are copied. `_unsafe_view` stays: its result counts as no view, so that it may
# be changed in place.
OF_ANY_STRIDES = {aten.view.default: aten.reshape.default}
NUMBERS = count()  # of texts


def function_of(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """The function of the list of the graph's inputs, which it empties."""
    text, dead = _Text(module.graph), _dead_after(module.graph)
    inputs = [f"{text.names[node]}, " for node in module.graph.find_nodes(op="placeholder")]
    lines = [*([f"{''.join(inputs)} = inputs"] if inputs else []), "inputs.clear()"]
    for node in module.graph.nodes:
        if node.op == "call_function":
            given = [text.of(value) for value in node.args]
            given += [f"{name}={text.of(value)}" for name, value in node.kwargs.items()]
            called = text.name_of(private.direct(OF_ANY_STRIDES.get(node.target, node.target)), node.target)
            lines.append(f"{text.names[node]} = {called}({', '.join(given)})")
        elif node.op == "get_attr":
            lines.append(f"{text.names[node]} = {text.name_of(attrgetter(node.target)(module), 'constant')}")
        elif node.op == "output":
            lines.append(f"return {text.of(node.args[0])}")
        elif node.op != "placeholder":
            raise NotImplementedError(f"a captured graph has operations, inputs and constants, got {node.op}")
        lines += [f"del {', '.join(text.names[given] for given in dead[node])}"] if dead[node] else []
    return _made("def run(inputs):\n    " + "\n    ".join(lines), text.known)


def _made(source: str, known: dict[str, Any]) -> Callable[[list[Any]], Any]:
    """The function `run` that the source defines; errors inside of it show its lines."""
    name = f"<captured graph {next(NUMBERS)}>"
    exec(compile(source, name, "exec"), known)
    made: Callable[[list[Any]], Any] = known.pop("run")  # else it would hold itself
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    weakref.finalize(made, linecache.cache.pop, name, None)
    return made


class _Text:
    """Text for what a graph's operations take; `known` has operations and constants, by the names there."""

    def __init__(self, graph: fx.Graph) -> None:
        self.names = {node: f"x{place}" for place, node in enumerate(graph.nodes)}
        self.known: dict[str, Any] = {}

    def name_of(self, value: Any, kind: Any) -> str:
        name = re.sub(r"\W", "_", getattr(kind, "__name__", str(kind))) + f"_{len(self.known)}"
        self.known[name] = value
        return name

    def of(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return self.names[value]
        if not _has_nodes(value):
            return self.name_of(value, "constant")
        match value:
            case slice():
                return f"slice({self.of(value.start)}, {self.of(value.stop)}, {self.of(value.step)})"
            case dict():
                return "{" + "".join(f"{key!r}: {self.of(part)}, " for key, part in value.items()) + "}"
            case list():
                return "[" + "".join(f"{self.of(part)}, " for part in value) + "]"
            case tuple() if not hasattr(value, "_fields"):
                return "(" + "".join(f"{self.of(part)}, " for part in value) + ")"
        raise NotImplementedError(f"a captured graph has tensors in lists, tuples and dictionaries, got {type(value)}")


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


def _has_nodes(value: Any) -> bool:
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return bool(found)
