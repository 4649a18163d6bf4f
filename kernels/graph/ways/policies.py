"""The ways by the names that `kernels.compress` takes as `policy`."""

from kernels.errors import KernelError, shown
from kernels.graph.ways.derivative import Derivative
from kernels.graph.ways.few_bit import FewBitDerivative
from kernels.graph.ways.from_output import FromOutputDerivative
from kernels.graph.ways.way import Way
from kernels.methods.registry import near

WAYS = (FewBitDerivative, FromOutputDerivative, Derivative)
POLICIES: dict[str, Way] = {name: value for way in WAYS for name, value in way.policies().items()}


def way_of(policy: object) -> Way:
    """The way of that name.

    Raises
    ------
    KernelError
        For another name.
    """
    if not isinstance(policy, str) or policy not in POLICIES:
        hint = near(policy, POLICIES) if isinstance(policy, str) else ""
        raise KernelError(f"policy must be one of {', '.join(POLICIES)}, got {shown(policy)}{hint}")
    return POLICIES[policy]
