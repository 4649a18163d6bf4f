"""What this package asks of PyTorch's compiler, by names of `kernels.private` alone."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from actfit.kernels import private
from actfit.kernels.errors import KernelError


def partition(joint: fx.GraphModule, inputs: Sequence[object], **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """PyTorch's own partition, which may recompute views and inputs of products in backward: codes are cheaper."""
    with private.functorch_config.patch(ban_recompute_materialized_backward=False, recompute_views=True):
        forward, backward = private.min_cut(joint, inputs, **options)
    return forward, backward


def of_tracing(inputs: Sequence[Any]) -> Sequence[Any]:
    """Inputs whose fake tensors are of the mode of Dynamo's own: before 2.11, PyTorch refuses those of another."""
    context = private.TracingContext.try_get()
    if context is None or context.fake_mode is None:
        return inputs
    mode = context.fake_mode
    return [
        mode.from_tensor(value, static_shapes=True) if private.is_fake(value) and value.fake_mode is not mode else value
        for value in inputs
    ]


def is_region(node: fx.Node) -> bool:
    """Whether it runs a nested_compile_region, whose graph is cut by itself."""
    return isinstance(node.target, private.HigherOrderOperator) and node.target.name() == "invoke_subgraph"


PLACE = "post_grad_custom_pre_pass"  # Inductor's option for what is called with a graph before it is lowered


class KeepForRegions:
    """Forbids Inductor to write into saved tensors where a graph has regions.

    It takes positions of a backward graph's inputs that may be overwritten for positions of its regions' inputs, too:
    weights and what is saved there were overwritten before their last use (torch 2.13, without codes as well).

    passes: those that a user configured, which run first.
    """

    def __init__(self, *passes: Any) -> None:
        self.passes = passes

    def __call__(self, graph: fx.Graph) -> None:
        """Before a graph is lowered; it stays as the user's own passes leave it."""
        for configured in self.passes:
            configured(graph)
        context = private.TracingContext.try_get()
        if context is not None and context.fw_metadata and any(map(is_region, graph.nodes)):
            context.fw_metadata.bw_donated_idxs = []

    def uuid(self) -> object:
        """The key in Inductor's caches; None, for no caching, if a user's own pass has none."""
        keys = [getattr(configured, "uuid", lambda: None)() for configured in self.passes]
        return None if None in keys else ("kernels.compression keep for regions 2", *keys)


def settings() -> dict[str, Any]:
    """Options of Inductor for lower peaks of compiled graphs with codes; results stay the same.

    Inductor takes a tensor that is written in another's place for one more, so its estimate of the peak is too high.
    Hence its order of operations may hold more than the graph's own: on a CPU that one stays. And it holds freed memory
    for later tensors, past the peak: not where there is a GPU, whose allocator is quick. A CPU's takes time.

    The machine decides, since no model is known yet.
    """
    order = "allow_buffer_reuse" if torch.cuda.is_available() else "reorder_for_peak_memory"
    private.as_graph_pass(KeepForRegions)
    of_users = [part for part in _passes() if not isinstance(part, KeepForRegions)]
    return {order: False, PLACE: KeepForRegions(*of_users)}


def _passes() -> Sequence[Any]:
    """The passes that Inductor runs before a graph is lowered."""
    configured = getattr(private.inductor_config, PLACE) or ()
    return configured if isinstance(configured, list | tuple) else (configured,)  # lists from torch 2.13 on


def check_regions(graph: fx.Graph) -> None:
    """Raise KernelError where a graph that is compiled has regions, and saved tensors are not kept for them."""
    if any(map(is_region, graph.nodes)) and not any(isinstance(part, KeepForRegions) for part in _passes()):
        raise KernelError(
            f"options must have {PLACE} as actfit.options gives it where a model has a nested_compile_region, got"
            f" another; set torch._inductor.config.{PLACE} to yours before actfit.options(), which runs it first"
        )


def module_name(path: str) -> str:
    """The module's name in Dynamo's path to it, as L['self'].layers.0 or G['model'].layers.0."""
    path = re.sub(r"^[LG]\['\w+'\](\._orig_mod)?", "", path)
    return re.sub(r"\._modules\['(\w+)'\]", r".\1", path).lstrip(".")
