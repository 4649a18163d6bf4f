"""Which numbers are on which side of a threshold, by the codes of what they were made of.

A batch norm rises or falls all through a channel. So if groups lie within channels, the input of a norm can be coded so
that the codes tell where the result is above 0, which is what a ReLU after the norm needs to know.
"""

from math import inf, prod
from typing import Any, TypeGuard

from torch import Tensor

from kernels.eager.encoded import Encoded, SavedCode, Sided
from kernels.eager.intervals import Interval
from kernels.eager.provenance import RunningCall
from kernels.eager.tensors import ViewGeometry, group_of, is_dense, is_plain
from kernels.eager.values import Operand, Value
from kernels.errors import KernelError

ABOVE_ZERO = Interval(0.0, inf)
MONOTONE = frozenset(["batch_norm", "group_norm"])  # in each channel


class Waiting(Encoded):
    """The input of a norm, not yet coded: first the norm's result must be known.

    Attributes
    ----------
    x, site
        The input, and its site.
    """

    def __init__(self, x: Tensor, site: str) -> None:
        self.x, self.site, self._tensors = x, site, []

    def decode(self, tensors: list[Tensor]) -> Tensor:
        """Raises KernelError: backward does not run before the norm's result is known."""
        raise KernelError("a norm must have ended before its input is decoded, got a backward pass within; report this")


class Sides(Encoded):
    """Bools that the codes of numbers tell.

    Parameters
    ----------
    saved, edges
        The numbers, as `Sided` codes them, and the edges of their groups.
    """

    def __init__(self, saved: SavedCode, edges: Tensor) -> None:
        self._saved, self._tensors, self.unit = saved, [edges], saved.code.unit
        saved.lent = True

    def decode(self, tensors: list[Tensor]) -> Tensor:
        """Exactly."""
        return self._code().inside(self._saved.tensors(), tensors[0])

    def piece(self, tensors: list[Tensor], place: slice) -> Tensor:
        """Exactly."""
        return self._code().inside(self._saved.tensors(), tensors[0], place)

    def _code(self) -> Sided:
        code = self._saved.code
        if not isinstance(code, Sided):
            raise KernelError(f"codes must be of the class Sided to tell sides, got {type(code).__name__}; report this")
        return code


def is_by_channel(x: Tensor) -> bool:
    """Whether each group of neighbours of x, the input of a norm, lies within a channel, dimension 1."""
    return x.dim() > 2 and x.is_contiguous() and is_dense(x) and prod(x.shape[2:]) % group_of(x) == 0


def is_like(result: Any, x: Tensor) -> TypeGuard[Tensor]:
    """Whether a call's result has its elements where x, a contiguous argument, has them."""
    if not isinstance(result, Tensor) or not is_plain(result):
        return False
    return result.shape == x.shape and result.is_contiguous() and is_dense(result)


def source_of(value: Value, geometry: ViewGeometry, saver: RunningCall) -> Value:
    """The argument of the call that saves a value, if that is its result and lies in memory like it; else the value."""
    call, repeated = value.call, saver.repeated
    if call is None or repeated is None or call.operands is not repeated.operands:
        return value
    first = call.args[0] if call.args else None
    return first.value if isinstance(first, Operand) and first.geometry == geometry else value
