"""A training step that is traced once and cut in many ways: tracing takes longer than all the rest."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

from actfit.kernels.compression.crossing import Graph
from actfit.kernels.compression.layout import GroupLayout, layout_of
from actfit.kernels.engine import ops
from actfit.kernels.graph import codes, splice


def through_codes(x: Tensor, bits: int, rounding: str = "nearest", of_roots: bool = False) -> tuple[Tensor, Tensor]:
    """The tensor that backward decodes, and the steps of the groups as [*lead, groups], float32."""
    layout = layout_of(x)
    assert isinstance(layout, GroupLayout)
    code = codes.encode(x, layout.order, layout.group, bits, rounding == "stochastic", of_roots, False)
    return codes.decode(*code, None, x.shape, layout.order, layout.group, x.dtype, of_roots), code[2].float()


def _encode(x: Tensor, order: Sequence[int], group: int, bits: int, *options: bool) -> list[Tensor]:
    held = [codes.flat_of(x, order).clone(), x.new_empty(1), x.new_empty(1)]
    return held + [x.new_empty((*x.shape, 0))] * options[-1]


def _decode(
    held: Tensor, _: Tensor, __: Tensor, sized: Tensor | None, shape: Sequence[int], order: Sequence[int], *others: Any
) -> Tensor:
    return codes.shaped(held, shape if sized is None else sized.shape[:-1], order).clone()  # an operation makes its own


_OF_FULL_WIDTH = {codes.encode: _encode, codes.encode_input: _encode, codes.decode: _decode}
for _name, _of in (("encode", codes.encode), ("decode", codes.decode)):  # Inductor calls operations only
    _signature = str(codes.operation(_of)._schema).partition("(")[2]  # type: ignore[attr-defined]
    torch.library.define(f"actfit_full_width::{_name}", f"({_signature}", tags=ops.STRIDES)
    torch.library.impl(f"actfit_full_width::{_name}", "CompositeExplicitAutograd", _OF_FULL_WIDTH[_of])
    torch.library.register_fake(f"actfit_full_width::{_name}", _OF_FULL_WIDTH[_of])
_OPERATIONS = {
    _encode: torch.ops.actfit_full_width.encode.default,
    _decode: torch.ops.actfit_full_width.decode.default,
}


@contextlib.contextmanager
def full_width() -> Iterator[None]:
    """Codes that hold the elements' own bits; only their arithmetic is replaced.

    If a gradient then is not that of the same cut without codes, bit for bit, the wiring is wrong.
    """
    with pytest.MonkeyPatch.context() as patch:
        for replaced, function in _OF_FULL_WIDTH.items():
            patch.setattr(splice, replaced.__name__, function)
        patch.setattr(splice, "is_plain", lambda *_: False)
        patch.setattr(splice, "operation", lambda function: _OPERATIONS.get(function) or codes.operation(function))
        yield


@dataclass
class Joint:
    """A joint graph, the options of its partitioner, and the inputs of its first forward and backward run."""

    graph: fx.GraphModule
    inputs: Any
    options: dict[str, Any]
    given: list[Any] = field(default_factory=list)
    state: Tensor = field(default_factory=torch.get_rng_state)
    upstream: list[Tensor] = field(default_factory=list)


class Step:
    """A compiled function and its joint graphs: `run` cuts them by one partitioner, `again` by others."""

    def __init__(self, function: Callable[..., Any], cut: Callable[..., Any]) -> None:
        self.joints: list[Joint] = []
        self.cut = cut
        backend = aot_autograd(
            fw_compiler=self._forward,
            bw_compiler=self._backward,
            partition_fn=self._partition,
            decompositions=select_decomp_table(),
        )
        torch._dynamo.reset()
        self.run = torch.compile(function, backend=backend)

    def again(self, cut: Callable[..., Any]) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs and gradients of all graphs whose backward ran, with the same inputs and random numbers."""
        given: list[Tensor] = []
        gradients: list[Tensor] = []
        for joint in [joint_run for joint_run in self.joints if joint_run.upstream]:
            forward, backward = cut(_copied(joint.graph), joint.inputs, **joint.options)
            count = joint.options["num_fwd_outputs"]
            torch.set_rng_state(joint.state)
            outputs = forward(*_clones(joint.given))
            given += _tensors(outputs[:count])
            gradients += _tensors(backward(*outputs[count:], *joint.upstream))
        return given, gradients

    def _partition(self, graph: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        self.joints.append(Joint(_copied(graph), inputs, options))
        parts = self.cut(graph, inputs, **options)
        for part in parts:  # backward may be made after other graphs were cut
            part.meta["joint"] = len(self.joints) - 1
        return parts

    def _forward(self, graph: fx.GraphModule, _: Any) -> Any:
        joint = self.joints[graph.meta["joint"]]

        def run(*given: Any) -> Any:
            if not joint.given:
                joint.given, joint.state = _clones(given), torch.get_rng_state()
            return graph(*given)

        return make_boxed_func(run)

    def _backward(self, graph: fx.GraphModule, _: Any) -> Any:
        joint = self.joints[graph.meta["joint"]]
        names = [node.name for node in graph.graph.find_nodes(op="placeholder")]

        def run(*given: Any) -> Any:
            pairs = zip(names, given, strict=True)
            joint.upstream = joint.upstream or [tensor.clone() for name, tensor in pairs if name.startswith("tangents")]
            return graph(*given)

        return make_boxed_func(run)


def same(results: tuple[list[Tensor], list[Tensor]], others: tuple[list[Tensor], list[Tensor]]) -> bool:
    """Whether outputs and gradients of two cuts are equal bit for bit."""
    pairs = zip([*results[0], *results[1]], [*others[0], *others[1]], strict=True)
    return all(torch.equal(result, other) for result, other in pairs)


def allowed(graphs: Sequence[Graph], bits: int) -> float:
    """The relative error of a gradient if the errors of all coded tensors added up in one direction.

    A group of 64 normal values spans about 5 of their standard deviations, and rounding to a step is off by a step
    through the root of 12, in the root mean square. Most tensors' errors are independent of each other, so that there
    is room for operations that magnify them a little.
    """
    coded = sum("bits" in row.form for graph in graphs for row in graph.crossings)
    return float(coded * 5 / (2**bits - 1) / 12**0.5)


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    """A copy with the same tensors: a partitioner changes only the graph."""
    graph = fx.Graph()
    given = graph.graph_copy(module.graph, {})
    (last,) = module.graph.find_nodes(op="output")
    graph.output(given).meta = dict(last.meta)
    return fx.GraphModule(module, graph)


def _clones(values: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, Tensor) else value for value in values]


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor)]
