"""Rules for the form in which a tensor crosses from the forward graph into the backward graph."""

import operator
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx

from actfit.kernels.compression import private
from actfit.kernels.compression.exact import is_probability
from actfit.kernels.compression.layout import GroupLayout, depends_on_data, hint, layout_of
from actfit.kernels.compression.nodes import arguments_of, is_view, packet_of, readings
from actfit.kernels.engine.codes import bytes_of_codes
from actfit.kernels.engine.planes import plane_bytes
from actfit.kernels.methods.every_tensor import SMALLEST as SMALLEST  # imported from here, as tests change it
from actfit.kernels.methods.every_tensor import STATISTIC, EveryTensor

aten = torch.ops.aten

MAX_BITS = EveryTensor.widths[-1]  # of an element
HEADER = 4  # bytes of a group: its minimum and its step

LOG_SUM_EXPS = ("logsumexp", "softmax_lse", "lse")  # names in operations of PyTorch and of FlashAttention
# Names of arguments that must be exact: statistics, log-sum-exps, random states, masks with infinities.
EXACT_ARGUMENTS = frozenset(
    [
        "mean",
        "rstd",
        "save_mean",
        "save_invstd",
        "save_var",
        "reserve",
        "reserveSpace",
        *LOG_SUM_EXPS,
        "cum_seq_q",
        "cum_seq_k",
        "philox_seed",
        "philox_offset",
        "attn_bias",
        "attn_mask",
    ]
)
REDUCTIONS = (aten.mean, aten.sum, aten.var, aten.var_mean, aten.std, aten.amax, aten.amin, aten.max, aten.min)

# Functions with a pole, or a domain that ends; AWAY is far enough from there.
POLES = (
    *(aten.reciprocal, aten.rsqrt, aten.sqrt, aten.log, aten.log2, aten.log10, aten.log1p),
    *(aten.asin, aten.acos, aten.acosh, aten.atanh, aten.erfinv, aten.digamma),
)
POSITIVE = (aten.exp, aten.exp2, aten.sigmoid, aten.cosh)
AWAY = 2.0**-4
SCATTERED = (aten.scatter, aten.scatter_add, aten.index_put)  # the gradients of what reads at places, as gather


@dataclass(frozen=True)
class Whole:
    """The tensor itself."""

    reason: str


@dataclass(frozen=True)
class Bits:
    """Bools, a bit each."""

    layout: GroupLayout


@dataclass(frozen=True)
class Groups:
    """Codes of `bits` bits, by groups; of the tensor's roots, if `of_roots`."""

    bits: int
    layout: GroupLayout
    of_roots: bool = False


@dataclass(frozen=True)
class FixedRange(Groups):
    """Codes of what a batch norm, a node of the forward graph, normalises; on a fixed range about the mean."""

    norm: fx.Node = field(kw_only=True)


@dataclass(frozen=True)
class ComputedAgain:
    """Nothing crosses: backward computes the tensor again."""


Form = Whole | Bits | Groups | ComputedAgain


def form_of(node: fx.Node, placeholder: fx.Node, bits: int, smallest: int) -> Form:
    """The form in which `node` of the forward graph crosses to `placeholder` of the backward graph.

    A tensor of fewer than `smallest` elements crosses whole.
    """
    value: Tensor = node.meta["val"]
    if value.dtype != torch.bool and not value.is_floating_point():
        return Whole("integers")
    if value.is_floating_point() and value.element_size() == 1:
        return Whole("8 bits already")
    if any(map(private.is_region, placeholder.users)):
        return Whole("a nested_compile_region saves it; if it is coded, the region has a graph of its own here")
    if depends_on_data(value):
        return Whole("its size depends on data, and is not counted")
    if value.numel() < smallest:  # of sizes that change, a guard: others have a graph of their own
        return Whole(f"fewer than {smallest} elements")
    if _must_be_exact(placeholder):
        return Whole("backward needs it exactly")
    if _is_of_targets(node, placeholder):
        return Whole("backward subtracts 1 from probabilities of targets, which are nearly 1 after training")
    if _is_statistic(node):
        return Whole("a statistic")
    if value.is_floating_point() and is_divisor(placeholder):
        return Whole("backward divides by it")
    layout = layout_of(value)
    if isinstance(layout, str):
        return Whole(layout)
    # Codes of probabilities would round most of a group to its minimum; codes of roots keep zeros, and small ones.
    return Bits(layout) if value.dtype == torch.bool else Groups(bits, layout, is_probability(node, {}))


def bytes_of(value: Tensor) -> int:
    """Bytes of a tensor; sizes that change are those that the compiler saw first."""
    size: int = value.element_size()
    return hint(value.numel()) * size


def coded_bytes(value: Tensor, form: Form) -> int:
    """Bytes of a tensor in a form."""
    if isinstance(form, Whole):
        return bytes_of(value)
    if isinstance(form, ComputedAgain):
        return 0
    if isinstance(form, FixedRange):
        return bytes_of_codes(hint(value.numel()), form.bits) + 2 * bytes_of(form.norm.meta["val"][1])
    count = hint(value.numel())
    if isinstance(form, Bits):
        return plane_bytes(count)
    return bytes_of_codes(count, form.bits) + HEADER * -(-count // form.layout.group)


def _must_be_exact(placeholder: fx.Node) -> bool:
    """Whether it, or a view of it, is an argument that must be exact."""

    def is_like_view(user: fx.Node) -> bool:
        return len(user.all_input_nodes) == 1 and isinstance(user.meta.get("val"), Tensor)

    return any(
        value is node and name in EXACT_ARGUMENTS
        for node, user in readings(placeholder, is_like_view)
        for name, value in arguments_of(user).items()
    )


def is_divisor(placeholder: fx.Node) -> bool:
    """Whether backward divides by it, as in the derivative of a logarithm or a root.

    Near 0, half a step is a factor of such a quotient, and may make it infinite. The same holds for values computed
    from the placeholder element by element, unless they are known to stay away from 0, as 1 + x * x.
    """
    size = hint(placeholder.meta["val"].numel())

    def is_computed_so(user: fx.Node) -> bool:
        value = user.meta.get("val")
        return isinstance(value, Tensor) and hint(value.numel()) == size and not _is_away_from_zero(user)

    return any(node is _divisor(user) for node, user in readings(placeholder, is_computed_so))


def _divisor(node: fx.Node) -> object:
    """The argument by which an operation divides or in which it has a pole; None if there is none."""
    packet = packet_of(node)
    if packet in (aten.div, aten.binary_cross_entropy_backward, aten.polygamma):
        return node.args[1]
    if packet is aten.pow:
        exponent = node.args[1]
        is_polynomial = isinstance(exponent, int | float) and exponent >= 0 and exponent == int(exponent)
        return None if is_polynomial else node.args[0]
    return node.args[0] if packet in POLES else None


def _is_away_from_zero(node: fx.Node) -> bool:
    """Whether its result is positive, and a small change of its argument changes its logarithm little."""
    if packet_of(node) is not aten.add:
        return packet_of(node) in POSITIVE
    number = any(isinstance(arg, int | float) and arg >= AWAY for arg in node.args)
    return number and any(isinstance(arg, fx.Node) and _is_not_negative(arg) for arg in node.args)


def _is_not_negative(node: fx.Node) -> bool:
    packet, args = packet_of(node), node.args
    is_square = (packet is aten.mul and args[0] is args[1]) or (packet is aten.pow and args[1] in (2, 4))
    return is_square or packet in (*POSITIVE, aten.abs)


def _is_of_targets(node: fx.Node, placeholder: fx.Node) -> bool:
    """Whether it is of a log-softmax, or probabilities to which backward adds what it scatters to places.

    So does the gradient of a cross-entropy, p - 1 at its targets: an error of p is a large one of p - 1 near p = 1.
    """
    if "aten._log_softmax" in str(node.meta.get("original_aten", node.target)):
        return True
    if not is_probability(node, {}):
        return False
    users = readings(placeholder, lambda user: packet_of(user) in (aten.mul, aten.neg) or is_view(user))
    sums = (user for _, user in users if packet_of(user) in (aten.add, aten.sub))
    return any(packet_of(part) in SCATTERED for total in sums for part in total.all_input_nodes)


def _is_statistic(node: fx.Node) -> bool:
    """Whether it is computed, element by element, from the result of a reduction."""
    size = bytes_of(node.meta["val"])
    seen, todo = set(), [node]
    while todo:
        ancestor = todo.pop()
        if ancestor in seen or ancestor.op != "call_function":
            continue
        seen.add(ancestor)
        source = ancestor.args[0] if ancestor.target is operator.getitem else ancestor
        if not isinstance(source, fx.Node):
            continue
        tensors = [arg for arg in source.all_input_nodes if isinstance(arg.meta.get("val"), Tensor)]
        sizes = {arg: bytes_of(arg.meta["val"]) for arg in tensors}
        if packet_of(source) in REDUCTIONS and sizes and max(sizes.values()) >= STATISTIC * size:
            return True
        todo += [arg for arg in tensors if sizes[arg] <= 2 * size]
    return False
