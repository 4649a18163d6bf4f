"""Contents of tensors in a forward pass: the call that made them, and the code saved for backward."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from kernels.eager.calls import ELEMENT_WISE, name_of
from kernels.eager.cutting import common, is_worth_cutting, joined, pieces
from kernels.eager.encoded import Encoded, SavedCode, changed
from kernels.eager.intervals import Interval
from kernels.eager.tensors import ViewGeometry, flat, version_of
from kernels.errors import KernelError

MOST_CODES, MOST_CALLS = 5, 13  # limits of recomputing a value: codes to decode, functions to run
NOWHERE = ViewGeometry(torch.Size(), (), 0)
RECENT = 2  # decoded tensors held for the next node that uses them, as q, k and v share an input

Recent = dict["Value", Tensor]  # in order of use


@dataclass(eq=False)
class Value:
    """The contents of a storage at one version of it.

    Attributes
    ----------
    exact
        Why it is saved whole, as parameters and statistics are; or "".
    call
        The call that made it, if it is cheap to repeat.
    saved
        Its code, if it has one.
    inside
        For each interval at whose ends a derivative jumps, a bit per element: whether it is inside.
    read
        The function that made it, if backward of it reads it, and not only which elements are inside an interval.
    """

    exact: str = ""
    call: "Call | None" = None
    saved: SavedCode | None = None
    inside: dict[Interval, SavedCode] = field(default_factory=dict)
    read: str = ""
    _asked: int = 0  # how many nodes of backward will use it
    _given: int = 0
    _last: "ReferenceType[Tensor] | None" = field(default=None, repr=False)

    def expect(self) -> None:
        """Count one more node of backward that will use it, and its operands if it is recomputed."""
        self._asked += 1
        if self._asked == 1 and self.saved is None and self.call is not None:
            for value in self.call.operands:
                value.expect()

    def keep(self, exact: SavedCode) -> None:
        """Save it exactly from now on, whatever it was saved as."""
        exact.lent = True  # it stays, even if it could be recomputed
        self.saved, self._last = exact, None

    def has_code_of(self, kind: type[Encoded]) -> bool:
        """Whether it is saved in this kind of code."""
        return self.saved is not None and isinstance(self.saved.code, kind)

    def codes(self) -> "Iterator[Value]":
        """The values whose codes must be decoded to recompute it."""
        if self.saved is not None:
            yield self
        elif self.call is not None:
            for value in self.call.operands:
                yield from value.codes()

    def is_made_of(self, others: "AbstractSet[Value]") -> bool:
        """Whether it is recomputed from the codes of others alone."""
        return self.saved is None and others >= set(self.codes())

    def calls(self) -> int:
        """How many functions run to recompute it."""
        if self.saved is not None or self.call is None:
            return 0
        return self.call.calls()

    def is_available(self) -> bool:
        """Whether it has a code or is cheap to recompute."""
        if self.saved is not None:
            return True
        if self.call is None or not all(value.is_available() for value in self.call.operands):
            return False
        return self.calls() <= MOST_CALLS and len(set(self.codes())) <= MOST_CODES

    def relieve(self) -> None:
        """Drop its code if it can now be recomputed from the code of one other value, as sigmoid(x) from x."""
        saved, self.saved = self.saved, None
        if saved is None:
            return
        if saved.lent or not self.is_available() or len(set(self.codes())) > 1:
            self.saved = saved
        elif self.call is not None and self._asked:
            for value in self.call.operands:
                value.expect()

    def flat(self, recent: Recent) -> Tensor:
        """The approximate contents in memory order; raises RuntimeError as `Constant.checked` does."""
        flat = None if self._last is None else self._last()
        if flat is None:
            flat = self.saved.decode() if self.saved else self._repeated(recent)
            for interval, inside in self.inside.items():
                flat = interval.put(flat, inside.decode())
            self._last = ref(flat)
        self._given += 1
        recent.pop(self, None)
        if self._given < self._asked:  # else only a second backward pass would use it
            recent[self] = flat
            if len(recent) > RECENT:
                del recent[next(iter(recent))]
        return flat

    def _repeated(self, recent: Recent) -> Tensor:
        call = self._its_call()
        unit, count, device = call.unit, call.geometry.numel(), call.device
        if unit is None or device is None or not is_worth_cutting(count, unit, device):
            return call.run(recent)
        for value in call.operands:
            value.used(recent)
        return joined(count, pieces(count, unit, device), call.piece)

    def _its_call(self) -> "Call":
        if self.call is None:
            raise KernelError("a tensor must be kept or have been made of kept ones, got one that is not; report this")
        return self.call

    @property
    def unit(self) -> int | None:
        """Where pieces of it may begin, as `Encoded.unit` says; None if it is not made by pieces."""
        source = self.call if self.saved is None else self.saved.code
        return None if source is None else common([source.unit, *(code.code.unit for code in self.inside.values())])

    def piece(self, place: slice) -> Tensor:
        """A piece of `flat`."""
        whole = None if self._last is None else self._last()
        if whole is not None:
            return whole[place]
        flat = self.saved.piece(place) if self.saved else self._its_call().piece(place)
        for interval, inside in self.inside.items():
            flat = interval.put(flat, inside.piece(place))
        return flat

    def used(self, recent: Recent) -> None:
        """Count one use by pieces, as `flat` counts its own."""
        self._given += 1
        if self._given >= self._asked:
            recent.pop(self, None)
        if self._given == 1 and self.saved is None and self.call is not None:
            for value in self.call.operands:
                value.used(recent)


@dataclass(frozen=True)
class Operand:
    """A value as an argument of a call; without a geometry it has that of the call's result."""

    value: Value
    geometry: ViewGeometry | None = None


@dataclass(frozen=True)
class Constant:
    """A tensor that is saved whole, and its version."""

    tensor: Tensor
    version: int

    @staticmethod
    def of(x: Tensor) -> "Constant":
        """At its current version."""
        return Constant(x.detach(), version_of(x))

    def checked(self) -> Tensor:
        """The tensor; raises RuntimeError, as autograd does, if it was changed since."""
        if version_of(self.tensor) != self.version:
            raise changed(self.tensor, self.version)
        return self.tensor


@dataclass(frozen=True, eq=False)
class Call:
    """A function with its arguments.

    Attributes
    ----------
    function, args, kwargs
        Tensors among the arguments are operands and constants.
    operands
        The values among the arguments.
    autocast
        Arguments of torch.autocast: kind of device, type, and whether it is on.
    geometry, dtype, device
        Of the result; a sum in place keeps the type of its first argument.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    operands: Sequence[Value]
    autocast: tuple[str, torch.dtype | None, bool]
    geometry: ViewGeometry = NOWHERE
    dtype: torch.dtype | None = None
    device: torch.device | None = None

    def calls(self) -> int:
        """How many functions run to recompute the result."""
        return 1 + sum(value.calls() for value in self.operands)

    def giving(self, result: Tensor, dtype: torch.dtype | None = None) -> "Call":
        """The call with the geometry and type of this result, or another type."""
        return replace(self, geometry=ViewGeometry.of(result), dtype=dtype or result.dtype, device=result.device)

    def run(self, recent: Recent) -> Tensor:
        """Run the call again; its result in memory order."""
        geometry = self.geometry
        result = self._of(lambda given: given.value.flat(recent).as_strided(*(given.geometry or geometry)))
        if result.stride() != geometry.stride:  # an operand had gaps
            result = result.new_empty_strided(geometry.size, geometry.stride).copy_(result)
        return flat(result)

    @property
    def unit(self) -> int | None:
        """Where pieces may begin, as `Encoded.unit` says; None for a function that takes other elements, too."""
        if name_of(self.function) not in ELEMENT_WISE or not self.geometry.is_packed():
            return None
        given = [*self.args, *self.kwargs.values()]
        if any(isinstance(x, torch.memory_format) or (isinstance(x, Constant) and x.tensor.dim() > 0) for x in given):
            return None
        operands = [x for x in given if isinstance(x, Operand)]
        if any((x.geometry or self.geometry) != self.geometry for x in operands):
            return None
        return common(x.value.unit for x in operands)

    def piece(self, place: slice) -> Tensor:
        """A piece of the result."""
        return self._of(lambda given: given.value.piece(place))

    def _of(self, operand: Callable[[Operand], Tensor]) -> Tensor:
        """The function's result, of what `operand` says its operands are."""

        def argument(given: Any) -> Any:
            if isinstance(given, Operand):
                return operand(given)
            return given.checked() if isinstance(given, Constant) else given

        args, kwargs = [argument(x) for x in self.args], {name: argument(x) for name, x in self.kwargs.items()}
        kind, dtype, enabled = self.autocast
        with torch.autocast(kind, dtype, enabled=enabled, cache_enabled=False):
            result: Tensor = self.function(*args, **kwargs)
        return result.to(self.dtype)
