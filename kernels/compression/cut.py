"""What crosses from a forward graph into its backward graph, in what form, and by what names a plan knows it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch import SymBool, SymFloat, SymInt, Tensor, fx

from kernels.compression import forms, private
from kernels.compression.attention import beside_a_log_sum_exp, compute_again
from kernels.compression.exact import move_to_forward
from kernels.compression.forms import MOST, Again, Bits, Form, Groups, Whole, form_of
from kernels.methods.every_tensor import EveryTensor


@dataclass(frozen=True)
class Cut:
    """What crosses.

    Attributes
    ----------
    outputs
        Of the forward graph, that are not for backward; they come first.
    pairs
        Nodes of the forward graph that cross, and the placeholders of the backward graph that they go to.
    forms
        Of tensors that cross, or are computed again; not of inputs that others hold.
    sites
        Names of those whose bits the method says, "module: operation", with a number from the second result on that
        this operation has in this module, as in "layers.0.mlp: aten.mul 2".
    """

    outputs: int
    pairs: dict[fx.Node, fx.Node]
    forms: dict[fx.Node, Form]
    sites: dict[fx.Node, str]

    @property
    def coded(self) -> dict[fx.Node, Bits | Groups]:
        """The forms of what crosses as codes."""
        return _coded(self.forms)


def cut_of(
    forward: fx.Graph,
    backward: fx.Graph,
    outputs: int,
    static: frozenset[int],
    method: EveryTensor,
    smallest: int | None = None,
) -> Cut:
    """Decide what crosses; what backward may not compute from codes is moved into the forward graph.

    What the forward graph gives is not changed yet.

    Parameters
    ----------
    outputs
        Of the forward graph, that are not for backward; they come first.
    static
        Places of inputs that stay where they are for the whole training: parameters and buffers.
    method
        Says the bits at each site.
    smallest
        Elements of a tensor that may have codes; None: `forms.SMALLEST`.
    """
    (last,) = forward.find_nodes(op="output")
    saved = _pairs(last.args[0][outputs:], backward)
    inputs = _inputs_without_gradient(forward, backward, static)
    least = forms.SMALLEST if smallest is None else smallest

    def found(pairs: dict[fx.Node, fx.Node]) -> dict[fx.Node, Form]:
        tensors = [node for node in pairs if node not in inputs and isinstance(node.meta.get("val"), Tensor)]
        return {node: form_of(node, pairs[node], MOST, least) for node in tensors}

    # As if all had codes, whatever the method says: so all plans of a model find the same sites.
    exact = move_to_forward(forward, backward, saved, set(_coded(found(saved))))
    pairs = compute_again(backward, exact, set(_coded(found(exact))))
    fine, names = beside_a_log_sum_exp(backward, set(pairs.values())), site_names(forward)
    kinds, sites = found(pairs), dict[fx.Node, str]()
    for node, form in kinds.items():
        if isinstance(form, Groups) and pairs[node] not in fine:
            sites[node] = names[node]
            at = method.at(names[node])
            kinds[node] = Whole("the plan keeps it") if at is None else Groups(at.bits, form.places)
    again = {node: Again() for node in exact if node not in pairs}
    return Cut(outputs, pairs, kinds | again, sites)


def site_names(graph: fx.Graph) -> dict[fx.Node, str]:
    """Of all nodes of a forward graph, see `Cut`: they count whether they cross or not."""
    counts: Counter[str] = Counter()
    names = {}
    for node in graph.nodes:
        name = f"{module_of(node)}: {operation_of(node)}"
        counts[name] += 1
        names[node] = name if counts[name] == 1 else f"{name} {counts[name]}"
    return names


def module_of(node: fx.Node) -> str:
    """Name of the module that it belongs to; "" for the model itself."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return private.module_name(stack[-1][0]) if stack else ""


def operation_of(node: fx.Node) -> str:
    """As "aten.addmm", by what the model called; or "an input"."""
    called = "an input" if node.op == "placeholder" else node.meta.get("original_aten", node.target)
    return str(called).removesuffix(".default")


def _coded(kinds: dict[fx.Node, Form]) -> dict[fx.Node, Bits | Groups]:
    return {node: form for node, form in kinds.items() if isinstance(form, Bits | Groups)}


def _pairs(saved: Sequence[fx.Node], backward: fx.Graph) -> dict[fx.Node, fx.Node]:
    """What crosses, and the placeholders of the backward graph, which begin with the sizes that forward ends with.

    Their names may differ, as in checkpointed regions.
    """
    sizes = [node for node in saved if isinstance(node.meta.get("val"), SymInt | SymFloat | SymBool)]
    others = [node for node in saved if node not in sizes]
    placeholders = backward.find_nodes(op="placeholder")
    matching = dict(zip([*sizes, *others], placeholders, strict=False))
    return {node: matching[node] for node in saved}


def _inputs_without_gradient(forward: fx.Graph, backward: fx.Graph, static: frozenset[int]) -> set[fx.Node]:
    """Parameters, buffers and batches: others hold them. An input with a gradient comes from a graph before this."""
    (last,) = backward.find_nodes(op="output")
    gradients = last.args[0]
    nodes = forward.find_nodes(op="placeholder")
    return {
        node
        for place, node in enumerate(nodes)
        if place in static or place >= len(gradients) or gradients[place] is None
    }
