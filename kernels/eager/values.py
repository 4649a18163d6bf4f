"""What is known of the tensors of a forward pass: how each was made, and what is kept of it for backward."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from kernels.eager.encoded import Encoded, changed
from kernels.eager.intervals import Interval
from kernels.eager.tensors import Place, flat, version_of
from kernels.errors import KernelError

MOST_CODES, MOST_CALLS = 4, 12  # of what is computed again: codes that are decoded, and functions that run
NOWHERE = Place(torch.Size(), (), 0)
RECENT = 2  # decoded tensors that wait for the next node that asks for them, as q, k and v ask for one input

Recent = dict["Value", Tensor]  # the one that was asked for last at the end


@dataclass(eq=False)
class Kept:
    """A code, and the tensors of it as hooks around ours gave them back.

    Attributes
    ----------
    code
        Of a flat tensor.
    packed, unpack
        What is kept of the code's tensors, and what gives each of these again.
    """

    code: Encoded
    packed: Sequence[Any]
    unpack: Callable[[Any], Tensor]

    _unpacked: list[Tensor] | None = field(default=None, repr=False)  # a checkpoint around gives each only once

    def decode(self) -> Tensor:
        """The flat tensor, approximately."""
        if self._unpacked is None:
            self._unpacked = list(map(self.unpack, self.packed))
        return self.code.decode(self._unpacked)


@dataclass(eq=False)
class Value:
    """The contents of a storage at one version of it.

    Attributes
    ----------
    exact
        Why it is kept as it is, as parameters and statistics are; or "".
    call
        What made it, if that is cheap to repeat.
    kept
        Its code, if it has one.
    inside
        A bit for each element, whether it is in an interval: for functions whose derivative jumps at its ends.
    """

    exact: str = ""
    call: "Call | None" = None
    kept: Kept | None = None
    inside: dict[Interval, Kept] = field(default_factory=dict)
    _asked: int = 0  # how often backward will ask for it
    _given: int = 0
    _last: "ReferenceType[Tensor] | None" = field(default=None, repr=False)

    def expect(self) -> None:
        """Count one more node of backward that will ask for it, and so for what it is made of."""
        self._asked += 1
        if self._asked == 1 and self.kept is None and self.call is not None:
            for value in self.call.operands:
                value.expect()

    def is_kept_as(self, kind: type[Encoded]) -> bool:
        """Whether it has a code of a kind."""
        return self.kept is not None and isinstance(self.kept.code, kind)

    def codes(self) -> "Iterator[Value]":
        """The values whose codes are decoded to give it."""
        if self.kept is not None:
            yield self
        elif self.call is not None:
            for value in self.call.operands:
                yield from value.codes()

    def calls(self) -> int:
        """How many functions run to give it."""
        if self.kept is not None or self.call is None:
            return 0
        return self.call.calls()

    def is_available(self) -> bool:
        """Whether backward can have it, and cheaply."""
        if self.kept is not None:
            return True
        if self.call is None or not all(value.is_available() for value in self.call.operands):
            return False
        return self.calls() <= MOST_CALLS and len(set(self.codes())) <= MOST_CODES

    def relieve(self) -> None:
        """Drop its code if it is made of a value that has one by now, and of no other: as sigmoid(x) beside x."""
        kept, self.kept = self.kept, None
        if kept is None:
            return
        if not self.is_available() or len(set(self.codes())) > 1:
            self.kept = kept
        elif self.call is not None and self._asked:
            for value in self.call.operands:
                value.expect()

    def flat(self, recent: Recent) -> Tensor:
        """The contents in the order of memory, approximately; raises RuntimeError as `Constant.checked` does."""
        flat = None if self._last is None else self._last()
        if flat is None:
            flat = self.kept.decode() if self.kept else self._repeated(recent)
            for interval, inside in self.inside.items():
                flat = interval.put(flat, inside.decode())
            self._last = ref(flat)
        self._given += 1
        recent.pop(self, None)
        if self._given < self._asked:  # else nobody asks again, but in a second backward pass
            recent[self] = flat
            if len(recent) > RECENT:
                del recent[next(iter(recent))]
        return flat

    def _repeated(self, recent: Recent) -> Tensor:
        if self.call is None:
            raise KernelError("a tensor must be kept or have been made of kept ones, got one that is not; report this")
        return self.call.run(recent)


@dataclass(frozen=True)
class Operand:
    """A tensor that a call is given: a value, as it lies at a place; None stands for that of the call's result."""

    value: Value
    place: Place | None = None


@dataclass(frozen=True)
class Constant:
    """A tensor that is kept as it is, at a version of it."""

    tensor: Tensor
    version: int

    @staticmethod
    def of(x: Tensor) -> "Constant":
        """As it is now."""
        return Constant(x.detach(), version_of(x))

    def checked(self) -> Tensor:
        """Raises RuntimeError, as autograd does, if it was changed since."""
        if version_of(self.tensor) != self.version:
            raise changed(self.tensor, self.version)
        return self.tensor


@dataclass(frozen=True, eq=False)
class Call:
    """A function with what it was given.

    Attributes
    ----------
    function, args, kwargs
        Tensors among the arguments are operands and constants.
    operands
        The values among the arguments.
    autocast
        What torch.autocast is given: the kind of device, the type, and whether it is on.
    place, dtype
        Of the result; what is added in place keeps its type.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    operands: Sequence[Value]
    autocast: tuple[str, torch.dtype | None, bool]
    place: Place = NOWHERE
    dtype: torch.dtype | None = None

    def calls(self) -> int:
        """How many functions run to give the result."""
        return 1 + sum(value.calls() for value in self.operands)

    def giving(self, result: Tensor, dtype: torch.dtype | None = None) -> "Call":
        """The call, whose result lies as this tensor does, and has its type or another."""
        return replace(self, place=Place.of(result), dtype=dtype or result.dtype)

    def run(self, recent: Recent) -> Tensor:
        """The result again, in the order of memory."""
        place = self.place

        def argument(given: Any) -> Any:
            if isinstance(given, Operand):
                return given.value.flat(recent).as_strided(*(given.place or place))
            return given.checked() if isinstance(given, Constant) else given

        args, kwargs = [argument(x) for x in self.args], {name: argument(x) for name, x in self.kwargs.items()}
        kind, dtype, enabled = self.autocast
        with torch.autocast(kind, dtype, enabled=enabled, cache_enabled=False):
            result: Tensor = self.function(*args, **kwargs)
        result = result.to(self.dtype)
        if result.stride() != place.stride:  # of an operand that had gaps
            result = result.new_empty_strided(place.size, place.stride).copy_(result)
        return flat(result)
