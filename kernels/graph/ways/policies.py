"""Papers' methods by the names that `actfit.compress` takes as `policy`."""

from actfit.kernels.errors import KernelError, shown
from actfit.kernels.graph.ways.derivative import Derivative
from actfit.kernels.graph.ways.few_bit import FewBitDerivative
from actfit.kernels.graph.ways.from_output import FromOutputDerivative
from actfit.kernels.graph.ways.way import Way
from actfit.kernels.methods.approximate_activations import ApproximateActivations
from actfit.kernels.methods.every_tensor import BITS, EveryTensor
from actfit.kernels.methods.registry import near

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
