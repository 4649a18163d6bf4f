"""Papers' methods by the names that `actfit.compress` takes as `policy`, and the ways among them."""

from dataclasses import dataclass
from typing import ClassVar

from actfit.kernels.errors import KernelError, shown
from actfit.kernels.graph.ways.way import Site, Way
from actfit.kernels.methods.approximate_activations import ApproximateActivations
from actfit.kernels.methods.every_tensor import BITS, EveryTensor
from actfit.kernels.methods.few_bit import FewBit
from actfit.kernels.methods.forward_derivative import ForwardDerivative
from actfit.kernels.methods.from_output import FromOutput
from actfit.kernels.methods.registry import near


@dataclass(frozen=True)
class FewBitDerivative(Way):
    """FewBit (Novikov et al., 2023): a certified table's code of x in `bits` bits; its level approximates f'."""

    method: ClassVar[str] = FewBit.name
    saves: ClassVar[str] = "a code of x, packed"
    error: ClassVar[str] = "the table's"

    @classmethod
    def policies(cls) -> dict[str, Way]:
        return {f"fewbit-{bits}": cls(bits) for bits in FewBit.widths}


@dataclass(frozen=True)
class FromOutputDerivative(Way):
    """InvAct (Novikov, Oseledets): y, which the next layer keeps anyway, and a bit for the branch of x; with two bits
    also which way y was rounded. Monotone functions need none."""

    method: ClassVar[str] = FromOutput.name
    saves: ClassVar[str] = "y, and a bit or two an element"
    error: ClassVar[str] = "what y, rounded to its dtype, does not tell"

    @classmethod
    def policies(cls) -> dict[str, Way]:
        return {"invact": cls(1), "invact-2": cls(2)}

    def refuses(self, site: Site) -> str:
        if site.from_output:
            return "PyTorch takes the derivative from the output already"
        if not site.y_kept:
            return "nothing else in backward reads the output, which takes as much as the input"
        return ""


@dataclass(frozen=True)
class Derivative(Way):
    """Nested forward AD (Guo et al.): forward computes f'(x), too, in the dtype of x; backward multiplies."""

    method: ClassVar[str] = ForwardDerivative.name
    saves: ClassVar[str] = "f'(x)"
    error: ClassVar[str] = "one rounding"

    @classmethod
    def policies(cls) -> dict[str, Way]:
        return {ForwardDerivative.name: cls()}


WAYS = (FewBitDerivative, FromOutputDerivative, Derivative)
POLICIES: dict[str, Way] = {name: value for way in WAYS for name, value in way.policies().items()}
# Those that save all tensors in codes, not activations alone.
METHODS: dict[str, EveryTensor] = {str(method): method for method in map(ApproximateActivations, BITS)}


def method_of(policy: object) -> EveryTensor | None:
    """The method of that name; None: that is a way's.

    Raises
    ------
    KernelError
        For another name.
    """
    names = [*POLICIES, *METHODS]
    if not isinstance(policy, str) or policy not in names:
        hint = near(policy, names) if isinstance(policy, str) else ""
        raise KernelError(f"policy must be one of {', '.join(names)}, got {shown(policy)}{hint}")
    return METHODS.get(policy)


def way_of(policy: str) -> Way:
    """The way of that name."""
    return POLICIES[policy]
