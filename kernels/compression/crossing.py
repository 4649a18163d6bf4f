"""Tensors that forward saves for backward, as a report lists them."""

from dataclasses import dataclass

from torch import Tensor, fx

from actfit.kernels.compression.cut import Cut, module_of, operation_of
from actfit.kernels.compression.forms import Bits, FixedRange, Form, Groups, Whole, bytes_of, coded_bytes
from actfit.kernels.compression.layout import hint
from actfit.kernels.engine.elements import dtype_name
from actfit.kernels.methods.approximate_activations import fixed_range_error
from actfit.kernels.methods.expected_error import expected_error


@dataclass(frozen=True)
class Crossing:
    """A tensor that forward saves for backward.

    Attributes
    ----------
    module
        The name of its module in the model; "" for the model itself.
    operation
        The operation that computed it, as "aten.addmm".
    shape
        Sizes that change are those that the compiler saw first.
    dtype
        As "bfloat16".
    form
        The form in which it crosses: "4 bits", "1 bit", "whole"; or "computed again" if it does not.
    reason
        Why it is whole, or "".
    before, after
        Bytes.
    error
        Expected relative error of the decoded tensor, root mean square, for normally distributed values; 0 if exact.
    site
        The name by which a plan sets its bits, see `kernels.compression.cut.Cut`; "" if no plan can.
    """

    module: str
    operation: str
    shape: tuple[int, ...]
    dtype: str
    form: str
    reason: str
    before: int
    after: int
    error: float
    site: str = ""


@dataclass(frozen=True)
class Graph:
    """All tensors that cross in one compiled graph.

    Attributes
    ----------
    crossings
        In the order of the graph.
    block
        The first module of those that share the graph; "": the whole model, or not known.
    """

    crossings: tuple[Crossing, ...]
    block: str = ""

    @property
    def before(self) -> int:
        """Bytes that would cross without codes."""
        return sum(crossing.before for crossing in self.crossings)

    @property
    def after(self) -> int:
        """Bytes that cross."""
        return sum(crossing.after for crossing in self.crossings)

    @property
    def ratio(self) -> float:
        """How many times less crosses than without codes."""
        return self.before / max(self.after, 1)

    def is_like(self, other: "Graph") -> bool:
        """Whether it is of the same modules, most of them: which of their tensors cross depends on sizes.

        A module of another model may have the same name: its tensors differ in dtype, rank or width.
        """
        own, others = (
            {
                (crossing.module, crossing.dtype, len(crossing.shape), crossing.shape[-1:])
                for crossing in graph.crossings
            }
            for graph in (self, other)
        )
        return self.block == other.block and 2 * len(own & others) >= len(own | others)


def crossings(cut: Cut, rounding: str) -> list[Crossing]:
    """The report's rows of all tensors that cross."""
    return [_row(node, form, cut.sites.get(node, ""), rounding) for node, form in cut.forms.items()]


def _row(node: fx.Node, form: Form, site: str, rounding: str) -> Crossing:
    value: Tensor = node.meta["val"]
    if isinstance(form, Whole):
        text, reason = "whole", form.reason
    elif isinstance(form, Groups):
        text, reason = f"{form.bits} bits" + (" of roots" if form.of_roots else ""), ""
    else:
        text, reason = "1 bit" if isinstance(form, Bits) else "computed again", ""
    return Crossing(
        module_of(node),
        operation_of(node),
        tuple(hint(length) for length in value.shape),
        dtype_name(value.dtype),
        text,
        reason,
        bytes_of(value),
        coded_bytes(value, form),
        _error(form, rounding),
        site,
    )


def _error(form: Form, rounding: str) -> float:
    """Of decoded values, expected if they are normally distributed; 0 for other forms, and for roots."""
    if isinstance(form, FixedRange):
        return fixed_range_error(form.bits)
    if isinstance(form, Groups) and not form.of_roots:
        return expected_error(form.bits, form.layout.group, rounding)
    return 0.0
