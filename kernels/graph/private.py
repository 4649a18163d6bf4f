"""What this package does with PyTorch's private modules: recomputation, and what runs the graphs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.checkpoint import CheckpointPolicy

from actfit.kernels import private
from actfit.kernels.autograd import once_differentiable
from actfit.kernels.compression.private import of_tracing
from actfit.kernels.compression.private import settings as inductor_settings
from actfit.kernels.graph.execute import Run, execute, execute_backward
from actfit.kernels.graph.frames import patched
from actfit.kernels.graph.twice import Call, once_more

SETTINGS = {  # while graphs are made
    "donated_buffer": False,
    "backward_pass_autocast": "off",
    "force_non_lazy_backward_lowering": True,  # later, on fake tensors, a graph that holds numbers cannot be copied
}
THROUGH = (
    "a gradient of a gradient must go through modules that can run once more, but one that compress(...) captured"
    " cannot: what it was given is kept in bits, no longer alive or changed since, or it draws random numbers, ran"
    " under autocast or has a function of its own; call remove() of the handle, or compress only other modules, as"
    " compress(model.generator)"
)
# A jump in one of these derivatives is a comparison, whose result takes one bit; each is bit for bit the same.
WRITTEN_OUT = ("threshold_backward", "hardtanh_backward", "leaky_relu_backward", "hardsigmoid_backward")


Watched = Callable[[fx.GraphModule, Run], Run]  # from a graph and what runs it, what runs it in its place


def by_kernels(
    partition: Callable[..., Any], forward: Watched, backward: Watched, tracing: Callable[[], Any]
) -> Callable[..., Any]:
    """A backend of torch.compile that cuts joint graphs by `partition`; PyTorch's own kernels run the parts."""
    aten = torch.ops.aten
    written_out = private.get_decompositions([getattr(aten, name) for name in WRITTEN_OUT])
    compiler = private.aot_autograd(
        fw_compiler=lambda graph, inputs: forward(graph, execute(graph)),
        bw_compiler=lambda graph, inputs: backward(graph, execute_backward(graph)),
        partition_fn=partition,
        decompositions=written_out,
    )

    def compiled(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with patched(private.functorch_config, SETTINGS), tracing(), private.operations_whole():
            return _called(once_more(graph, inputs), compiler(graph, of_tracing(inputs)), materialized=False)

    return compiled


def by_inductor(
    partitioner: Any,
    instead: Callable[[fx.GraphModule], Run] | None,
    forward: Watched,
    backward: Watched,
    tracing: Callable[[], Any],
) -> Callable[..., Any]:
    """A backend of torch.compile: Inductor, which cuts its joint graphs by `partitioner`.

    `instead` makes what runs a graph in place of what Inductor compiles it to.
    """
    private.as_partitioner(type(partitioner))
    patches = {"custom_partitioner_fn": partitioner, **inductor_settings()}

    def inner(graph: fx.GraphModule, inputs: Sequence[Any], **context: Any) -> Run:
        run = instead(graph) if instead else private.compile_fx_inner(graph, inputs, **context)
        return (backward if context.get("is_backward") else forward)(graph, run)

    def compiled(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        # A graph from autograd's cache would not be cut here, and so have no report; Inductor's own caches stay.
        with patched(private.functorch_config, {**SETTINGS, "enable_autograd_cache": False}), tracing():
            stock = once_more(graph, inputs)
            made = private.compile_fx(graph, of_tracing(inputs), inner_compile=inner, config_patches=patches)
        return _called(stock, made, materialized=True)

    return compiled


def _called(stock: Callable[..., Any] | None, run: Callable[..., Any], materialized: bool) -> Callable[..., Any]:
    """What runs graphs; their gradients are differentiable again by `stock`, where it can run once more.

    materialized: what has no gradient is 0 there.
    """

    def called(*given: Any) -> Any:
        call = Call(stock, given) if stock is not None else None
        computed = [x for x in given if isinstance(x, Tensor) and not x.is_leaf]
        link = _Link.apply(*computed) if computed else None  # before the run, which may change them in place
        since = private.sequence_number()
        results = run(*given)
        node = _node_behind((*results, *given), since)
        if node is not None:
            node.set_materialize_grads(materialized)  # else it is None in backward
            node.link, node.call = link, call
            kind = node._forward_cls
            kind.metadata.bw_donated_idxs = []  # else retain_graph is refused later
            if (own := kind.backward) is not _backward:  # so that two threads do no harm
                kind.twice, kind.backward = own, staticmethod(_backward)
        return results

    return called


def _node_behind(tensors: Iterable[Any], since: int) -> Any:
    """The node of a captured call behind its results, or behind what it changed in place; None if nothing wants one.

    since: the number of the first node that the call may have made. Those before it are of others; one with a link to
    itself would be kept for ever.
    """
    todo, seen = [tensor.grad_fn for tensor in tensors if isinstance(tensor, Tensor)], set[Any]()
    while todo:
        node = todo.pop(0)
        if node is None or node in seen or node._sequence_nr() < since:
            continue
        if node.name() == "CompiledFunctionBackward":
            return node
        seen.add(node)
        todo += [before for before, _ in node.next_functions]
    return None


class _Link(torch.autograd.Function):
    """A tensor by which autograd finds others, but that does not hold their memory."""

    @staticmethod
    def forward(ctx: Any, *_: Any) -> Tensor:
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError  # what comes before raises an error


def _backward(node: Any, *gradients: Any) -> Any:
    """Backward of a captured call. Where its gradients cannot be differentiated again, they say so, and what to do.

    These are connected to all that they depend on. Else a gradient by an input would leave out what goes through here.
    """
    if torch.is_grad_enabled() and node.call is not None:
        boxed = gradients and isinstance(gradients[0], list)  # by some releases
        again = node.call.gradients(gradients[0] if boxed else gradients, node.needs_input_grad)
        if again is not None:
            return again
    results = node._forward_cls.twice(node, *gradients)
    if not torch.is_grad_enabled():
        return results
    leaves = [before.variable for before, _ in node.next_functions if hasattr(before, "variable")]
    links = leaves if node.link is None else [node.link, *leaves]
    return tuple(None if x is None else once_differentiable(x, *links, error=THROUGH) for x in results)


def recompute_all_but(
    dear: Callable[[fx.Node], bool], joint: fx.GraphModule, inputs: Sequence[object], **options: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """PyTorch's partition of least bytes, where backward may compute again all but dear operations."""
    save_all([node for node in joint.graph.nodes if dear(node)])
    for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.embedding.default):
        # By position, a table makes PyTorch take this for a reduction, whose small result is worth saving.
        weight, *others = node.args
        names = ("indices", "padding_idx", "scale_grad_by_freq", "sparse")
        node.args, node.kwargs = (), {"weight": weight, **dict(zip(names, others, strict=False)), **node.kwargs}
    values = {
        "ban_recompute_materialized_backward": False,
        "ban_recompute_not_in_allowlist": False,
        "ban_recompute_used_far_apart": False,
        "ban_recompute_long_fusible_chains": False,
        "max_dist_from_bw": 1 << 30,
        "recompute_views": True,
    }
    with patched(private.functorch_config, values):
        forward, backward = private.min_cut(joint, inputs, **options)
    return forward, backward


def save_all(nodes: Iterable[fx.Node]) -> None:
    """Let PyTorch's partitions save the results of these nodes of a joint graph, if backward reads them."""
    for node in nodes:
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        for result in node.users:  # of several, tagged by a checkpoint that the user wrote
            result.meta.pop("recompute", None)
