"""Which tensors cross from a forward graph into its backward graph, in what form, and their names in a plan."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import Tensor, fx

from actfit.kernels.compression import private
from actfit.kernels.compression.attention import inputs_beside_log_sum_exp, recompute_attention
from actfit.kernels.compression.bases import cross_bases
from actfit.kernels.compression.exact import move_to_forward
from actfit.kernels.compression.factors import cross_factors
from actfit.kernels.compression.forms import MAX_BITS, Bits, ComputedAgain, Form, Groups, Whole, form_of, is_divisor
from actfit.kernels.compression.nodes import is_floating_point, is_size
from actfit.kernels.compression.returned import cross_returned, made_into, memory_of, returned_by
from actfit.kernels.compression.roundings import rounded_from
from actfit.kernels.methods.every_tensor import EveryTensor


@dataclass(frozen=True)
class Cut:
    """The tensors that cross, and their forms.

    Attributes
    ----------
    outputs
        The number of the forward graph's own outputs, which precede those for backward.
    pairs
        Nodes of the forward graph that cross, and their placeholders in the backward graph.
    forms
        Forms of tensors that cross or are computed again; not of inputs that are held elsewhere.
    sites
        Names of nodes whose bits the method sets: "module: operation", followed by a number from this operation's
        second result in this module on, as in "layers.0.mlp: aten.mul 2".
    """

    outputs: int
    pairs: dict[fx.Node, fx.Node]
    forms: dict[fx.Node, Form]
    sites: dict[fx.Node, str]

    @property
    def coded(self) -> dict[fx.Node, Bits | Groups]:
        """The forms of nodes that cross as codes."""
        return {node: form for node, form in self.forms.items() if isinstance(form, Bits | Groups)}


def cut_of(
    forward: fx.Graph,
    backward: fx.Graph,
    outputs: int,
    static: frozenset[int],
    method: EveryTensor,
    smallest: int,
) -> Cut:
    """Decide what crosses, and move operations that need exact values into the forward graph.

    The outputs of the forward graph are not changed yet.

    Parameters
    ----------
    outputs
        The number of the forward graph's own outputs, which precede those for backward.
    static
        Positions of inputs with a fixed address during training: parameters and buffers.
    method
        compress or a plan, which sets the bits at each site.
    smallest
        The least number of elements of a tensor that may have codes.
    """
    saved = cross_bases(backward, pairs_of(forward, backward, outputs))
    returned = returned_by(forward, outputs)
    rules = _Rules(backward, inputs_without_gradient(forward, backward, static), returned, smallest)
    held = cross_returned(forward, backward, saved, rules.coded(saved), outputs)
    factors = cross_factors(forward, backward, held, rules.coded(held))
    held_outputs = {node for node in factors if memory_of(node) in returned}
    exact = move_to_forward(forward, backward, factors, rules.coded(factors), held_outputs)
    pairs = recompute_attention(backward, exact, rules.coded(exact))
    fine, names = inputs_beside_log_sum_exp(backward, set(pairs.values())), site_names(forward)
    forms = rules.forms(pairs)
    groups = {node: form for node, form in forms.items() if isinstance(form, Groups) and pairs[node] not in fine}
    by_site = {node: by_method(form, method, names[node]) for node, form in groups.items()}
    recomputed = {node: ComputedAgain() for node in exact if node not in pairs}
    return Cut(outputs, pairs, forms | by_site | recomputed, {node: names[node] for node in groups})


@dataclass(frozen=True)
class _Rules:
    """In what forms tensors cross, as if all had codes, whatever the method: so all plans of a model have one set of
    sites. `inputs` are held elsewhere, `returned` hold what forward returns.
    """

    backward: fx.Graph
    inputs: set[fx.Node]
    returned: set[fx.Node]
    smallest: int

    def forms(self, pairs: dict[fx.Node, fx.Node]) -> dict[fx.Node, Form]:
        """The forms of tensors that cross, but of inputs."""
        tensors = [node for node in pairs if node not in self.inputs and isinstance(node.meta.get("val"), Tensor)]
        forms = {node: form_of(node, pairs[node], MAX_BITS, self.smallest) for node in tensors}
        whole = self._whole(pairs)
        return {node: whole.get(node, form) if isinstance(form, Groups) else form for node, form in forms.items()}

    def coded(self, pairs: dict[fx.Node, fx.Node]) -> set[fx.Node]:
        """Those that cross as codes."""
        return {node for node, form in self.forms(pairs).items() if isinstance(form, Bits | Groups)}

    def _whole(self, pairs: dict[fx.Node, fx.Node]) -> dict[fx.Node, Form]:
        divisors = (node for node in pairs if is_floating_point(node) and is_divisor(pairs[node]))
        rounded = rounded_from(self.backward, pairs)
        met = made_into([*self.returned, *divisors], pairs)
        returned = [node for node in pairs if memory_of(node) in self.returned]
        return {
            **dict.fromkeys(rounded, Whole("backward rounds it, or computes an index")),
            **dict.fromkeys(met, Whole("forward returns what is made of it, or backward divides by that")),
            **dict.fromkeys(returned, Whole("forward returns it")),
        }


def by_method(form: Groups, method: EveryTensor, site: str) -> Form:
    """The form of a tensor that may have codes, as a method says for its site."""
    at = method.at(site)
    return Whole("the plan keeps it") if at is None else replace(form, bits=at.bits)


def site_names(graph: fx.Graph) -> dict[fx.Node, str]:
    """Site names of all nodes of a forward graph, crossing or not, see `Cut`."""
    counts: Counter[str] = Counter()
    names = {}
    for node in graph.nodes:
        name = f"{module_of(node)}: {operation_of(node)}"
        counts[name] += 1
        names[node] = name if counts[name] == 1 else f"{name} {counts[name]}"
    return names


def module_of(node: fx.Node) -> str:
    """The name of a node's module; "" for the model itself."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return private.module_name(stack[-1][0]) if stack else ""


def operation_of(node: fx.Node) -> str:
    """The operation that the model called, as "aten.addmm"; or "an input", or "a size", which may change or not."""
    given = "a size" if is_size(node) else "an input"
    called = given if node.op == "placeholder" else node.meta.get("original_aten", node.target)
    return str(called).removesuffix(".default")


def pairs_of(forward: fx.Graph, backward: fx.Graph, outputs: int) -> dict[fx.Node, fx.Node]:
    """What forward saves, after its own outputs, and the placeholders in the backward graph, where sizes come first.

    Their names may differ, as in checkpointed regions.
    """
    (last,) = forward.find_nodes(op="output")
    saved = last.args[0][outputs:]
    sizes = [node for node in saved if is_size(node)]
    others = [node for node in saved if node not in sizes]
    placeholders = backward.find_nodes(op="placeholder")
    matching = dict(zip([*sizes, *others], placeholders, strict=False))
    return {node: matching[node] for node in saved}


def save(forward: fx.Graph, outputs: int, nodes: Iterable[fx.Node]) -> None:
    """Let forward save these nodes, after its own outputs."""
    (last,) = forward.find_nodes(op="output")
    last.args = ((*last.args[0][:outputs], *nodes),)


def inputs_without_gradient(forward: fx.Graph, backward: fx.Graph, static: frozenset[int]) -> set[fx.Node]:
    """Parameters, buffers and batches, which are held elsewhere. Other inputs are results of a preceding graph."""
    (last,) = backward.find_nodes(op="output")
    gradients = last.args[0]
    nodes = forward.find_nodes(op="placeholder")
    return {
        node
        for place, node in enumerate(nodes)
        if place in static or place >= len(gradients) or gradients[place] is None
    }
