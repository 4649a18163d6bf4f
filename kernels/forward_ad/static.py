"""Nested forward AD ahead of time: three front ends that make a graph, and one rewrite of it."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from kernels import private
from kernels.errors import KernelError
from kernels.forward_ad.left_out import NoHooks, left_out
from kernels.forward_ad.observations import observe, state
from kernels.forward_ad.regions import find
from kernels.forward_ad.rewrite import RegionModule, replace
from kernels.memory.isolated import unchanged
from kernels.memory.making import line

Kind = Callable[[fx.GraphModule], nn.Module]
_WRAPPED = (nn.parallel.DistributedDataParallel, nn.DataParallel)
_COMPILE = "torch.compile(model, backend=forward_ad.backend())"


class Backend:
    """A backend for torch.compile that rewrites chains and runs the rest unchanged; see `backend`.

    Attributes
    ----------
    graphs
        Number of graphs it received.
    regions
        Number of regions it replaced in all graphs.
    left
        For each graph that it left unchanged, the reason.
    """

    def __init__(self, kind: Kind = RegionModule) -> None:
        self.kind = kind
        self.graphs = 0
        self.regions = 0
        self.left: list[str] = []

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs += 1
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        arguments = [node.meta.get("example_value", value) for node, value in zip(places, inputs, strict=True)]
        try:
            regions = find(module, observe(module, arguments))
        except Exception as error:  # whatever failed, the graph itself is valid
            self.left.append(line(error))
        else:
            replace(module, regions, self.kind)
            self.regions += len(regions)
        run: Callable[..., Any] = module.forward
        return run


def backend(*given: Any) -> Backend:
    """A backend for torch.compile(model, backend=forward_ad.backend()), in which each chain saves one derivative.

    Dynamo captures the graphs, which may break anywhere; chains in them are rewritten, and the graphs run without a
    compiler.

    Parameters
    ----------
    *given
        Must be empty: torch.compile(model, backend=backend), without a call, would pass a graph here.

    Raises
    ------
    KernelError
        For any argument.
    """
    if given:
        raise KernelError("backend must be called without arguments, as torch.compile(model, backend=backend())")
    return Backend()


def exported(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> nn.Module:
    """The model as torch.export sees it, in which each chain saves one derivative.

    It shares the model's parameters and buffers, so training it trains the model. It stays in the model's present mode,
    training or evaluation.

    Parameters
    ----------
    model
        A module that torch.export takes.
    args
        What the model is called with.
    kwargs
        Further arguments, by name.
    dynamic_shapes
        As for torch.export.export; without it, shapes are fixed.

    Raises
    ------
    KernelError
        For a model that cannot be exported.
    """
    check(model)
    if not isinstance(args, tuple):
        raise KernelError(f"args must be a tuple of what the model is called with, got {type(args).__name__}: (x,)")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise KernelError(f"kwargs must be a mapping, got {type(kwargs).__name__}")
    kwargs = dict(kwargs or {})
    with undisturbed():
        if lacks := left_out(model, args, kwargs):
            raise KernelError(f"model must be one that torch.export takes whole, got {lacks}; try {_COMPILE}")
        try:
            with NoHooks():
                program = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
            module = program.module()
        except Exception as error:  # torch.export and the model may raise anything
            raise KernelError(
                f"model must be one that torch.export takes, got {line(error)}; try {_COMPILE}"
            ) from error
        return _rewritten(module, private.tree_leaves((args, kwargs)))


def traced(model: nn.Module, *sample: Any) -> fx.GraphModule:
    """The model as torch.fx.symbolic_trace sees it, in which each chain saves one derivative.

    It shares the parameters, buffers and torch's own modules of the model that it uses; train() and eval() work, and
    shapes are free.

    Parameters
    ----------
    model
        A module that torch.fx.symbolic_trace takes.
    *sample
        What the model is called with; it shows which tensors have the same shape.

    Raises
    ------
    KernelError
        For a model that cannot be traced: with control flow that depends on tensors, with code of its own that depends
        on self.training, or from transformers.
    """
    check(model)
    with undisturbed():
        try:
            graph = _both_ways(model)
            module = fx.GraphModule(model, graph, type(model).__name__)
            if lacks := left_out(model, sample, {}):
                raise fx.proxy.TraceError(lacks)
            if model._forward_hooks or model._forward_pre_hooks:
                raise fx.proxy.TraceError("a hook on the model, which would be left out")
        except Exception as error:  # it runs the model's own code on proxies
            raise KernelError(
                f"model must be one that torch.fx.symbolic_trace can follow, got {line(error)}; use"
                f" forward_ad.exported(model, args), or {_COMPILE}"
            ) from error
        return _rewritten(module, sample)


def _both_ways(model: nn.Module) -> fx.Graph:
    """The model's graph, which must be the same in training and evaluation mode."""
    drawn = torch.get_rng_state()
    graph = _Tracer().trace(model)
    if not torch.equal(drawn, torch.get_rng_state()):
        raise fx.proxy.TraceError("random numbers that would be the same in each call")
    with unchanged(model):
        model.train(not model.training)
        other = _Tracer().trace(model)
    if str(graph) != str(other):
        raise fx.proxy.TraceError("code that depends on self.training, which would stay as it is now")
    return graph


class _Tracer(fx.Tracer):
    """A tracer that reads buffers in each call and refuses what torch.fx.symbolic_trace silently leaves out."""

    proxy_buffer_attributes = True

    def trace(self, *args: Any, **kwargs: Any) -> fx.Graph:
        self.state = state()
        return super().trace(*args, **kwargs)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if state() != self.state:
            raise fx.proxy.TraceError("gradients or autocast turned on or off within")
        return super().create_node(*args, **kwargs)


def _rewritten(module: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    arguments = [*inputs, *(node.args[0] for node in places[len(inputs) :] if node.args)]  # the rest have defaults
    if len(arguments) != len(places):
        names = ", ".join(node.name for node in places)
        raise KernelError(f"sample must be what the model is called with, {names}, got {len(inputs)} values")
    try:
        regions = find(module, observe(module, arguments))
    except Exception as error:
        raise KernelError(
            f"model must run on fake tensors, which have no numbers, got {line(error)}; try {_COMPILE}"
        ) from error
    replace(module, regions)
    return module


def check(model: Any) -> None:
    """Raises KernelError for what is not a module, or a module whose code cannot be traced."""
    if isinstance(model, _WRAPPED) or private.is_compiled_module(model):
        raise KernelError(f"model must be given before it is wrapped, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise KernelError("model must be given before torch.jit makes a script of it, got a ScriptModule")
    if not isinstance(model, nn.Module):
        raise KernelError(f"model must be a torch.nn.Module, got {type(model).__name__}")


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restores the states of all random number generators afterwards."""
    state = random.getstate()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(state)
