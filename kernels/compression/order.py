"""The order of operations in a backward graph, for a low peak."""

from torch import fx

from actfit.kernels.compression.nodes import is_mutable, is_product, is_pure, is_tangent, is_view


def reorder(graph: fx.Graph) -> None:
    """Compute gradients of weights as early as they can be, and what needs no gradient as late.

    Not where something is changed in place.
    """
    if not any(is_mutable(node) for node in graph.nodes):
        _move_results(graph)
        _delay(graph)


def _delay(graph: fx.Graph) -> None:
    """Move what is computed from saved tensors alone right before its first use."""
    of_gradients: set[fx.Node] = set()
    for node in graph.nodes:
        if is_tangent(node) or not of_gradients.isdisjoint(node.all_input_nodes):
            of_gradients.add(node)
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and node.users and node not in of_gradients and is_pure(node):
            min(node.users).prepend(node)


def _move_results(graph: fx.Graph) -> None:
    """Move nodes that only the output uses, gradients of weights, right after the gradient they are computed from.

    Autograd computes the gradient of a layer's input before that of its weight: it would be held while the product for
    the weight needs the decoded input. Products are moved first, so that sums end up before them.
    """
    last = graph.find_nodes(op="placeholder")[-1]
    new = [node for node in graph.nodes if node.op == "call_function" and is_pure(node) and not is_view(node)]
    results = [node for node in new if _is_for_output(node)]
    for result in sorted(results, key=is_product, reverse=True):
        nodes = list(graph.nodes)
        order = {node: place for place, node in enumerate(nodes)}
        cone = {result}
        for node in reversed(nodes[order[last] + 1 : order[result]]):
            is_own = not is_product(node) and is_pure(node) and cone.issuperset(node.users)
            if (is_view(node) or is_own) and not cone.isdisjoint(node.users):
                cone.add(node)
        roots = {argument for node in cone for argument in node.all_input_nodes} - cone
        place = max([last, *roots], key=order.__getitem__)
        for node in sorted(cone, key=order.__getitem__):
            if order[node] > order[place]:
                place.append(node)
                place = node


def _is_for_output(node: fx.Node) -> bool:
    """Whether the output uses it, and nothing else but as a view."""
    return bool(node.users) and all(
        user.op == "output" or (is_view(user) and _is_for_output(user)) for user in node.users
    )
