"""Codes of the tensors that autograd saves: encoding and decoding."""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import kernels.engine.ops  # noqa: F401 - registers the ops
from kernels.eager.tensors import squares, version_of
from kernels.engine.elements import computed
from kernels.engine.pieces import bytes_of
from kernels.engine.planes import pack, unpack
from kernels.methods.every_tensor import MAX_GROUP, EveryTensor


def changed(x: Tensor, expected: int) -> RuntimeError:
    """The error that autograd raises for a tensor changed in place."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation:"
        f" {tuple(x.shape)} is at version {version_of(x)}; expected version {expected}"
    )


class Encoded(ABC):
    """The code of a flat tensor.

    Attributes
    ----------
    unit
        A piece that begins at a multiple of 8 and of so many elements can be decoded by itself; None if none can.
    edges
        If the code tells on which side of a threshold each number is, where in each group codes change sides; until
        they are handed over.
    """

    unit: int | None = None
    edges: Tensor | None = None
    _tensors: list[Tensor]

    def parts(self) -> list[Tensor]:
        """The tensors of the code, until they are handed over."""
        return self._tensors

    def hand_over(self) -> list[Tensor]:
        """The tensors of the code, no longer held here: outer hooks may move them elsewhere."""
        tensors, self._tensors = self._tensors, []
        return tensors

    def hand_over_edges(self) -> Tensor | None:
        """The edges, no longer held here: few need them."""
        edges, self.edges = self.edges, None
        return edges

    @abstractmethod
    def decode(self, tensors: list[Tensor]) -> Tensor:
        """The flat tensor, from the tensors that were handed over."""

    def piece(self, tensors: list[Tensor], place: slice) -> Tensor:
        """A piece of the flat tensor."""
        return self.decode(tensors)[place]


class Uncoded(Encoded):
    """No code: the tensor itself, which must not change in place before backward.

    Parameters
    ----------
    flat
        The tensor.
    counted
        Whether to check its version when it is decoded: not of a copy, or if outer hooks replace the tensor.
    """

    def __init__(self, flat: Tensor, counted: bool) -> None:
        self._tensors, self._version = [flat], flat._version if counted else None

    def decode(self, tensors: list[Tensor]) -> Tensor:
        """Raises RuntimeError, as autograd does, if the tensor was changed since."""
        if self._version is not None and tensors[0]._version != self._version:
            raise changed(tensors[0], self._version)
        return tensors[0]


class Drawn:
    """Random numbers for the codes of one forward pass, from generators of their own.

    So dropout drops the same elements as without codes. The seed depends on the state of the CPU's generator and on
    the number of passes, as the next pass may begin with the same state.
    """

    _passes = itertools.count()

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            self._seed = (int(torch.randint(2**62, ())) + next(self._passes)) % 2**62
        self._generators: dict[torch.device, torch.Generator] = {}

    def like(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Uniform numbers from [0, 1) in the shape of x."""
        if x.device not in self._generators:
            self._generators[x.device] = torch.Generator(x.device).manual_seed(self._seed)
        return torch.rand(x.shape, dtype=dtype, device=x.device, generator=self._generators[x.device])


class Groups(Encoded):
    """Codes of groups of neighbours: each number in steps from the group's minimum."""

    def __init__(self, flat: Tensor, method: EveryTensor, group: int = MAX_GROUP, drawn: Drawn | None = None) -> None:
        self.count, self.dtype, self.group, self.unit = flat.numel(), flat.dtype, group, group
        is_random = method.rounding == "stochastic"
        noise = (drawn or Drawn()).like(flat, computed(flat.dtype)) if is_random else None
        place = group, 1, max(self.count, 1)
        self._tensors = list(torch.ops.actfit.encode_groups(flat, noise, *place, method.bits))

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return self._values(self.count, *tensors)

    def piece(self, tensors: list[Tensor], place: slice) -> Tensor:
        return self._values(place.stop - place.start, *self._cut(tensors, place))

    def squares(self, decoded: Tensor, exact: Tensor) -> Tensor:
        """||x' - x||² and ||x||² of what is coded, for decoded numbers and the exact ones."""
        return squares(decoded, exact)

    def _cut(self, tensors: list[Tensor], place: slice) -> list[Tensor]:
        """The planes, and what has an entry for each group, of a piece."""
        planes, *vectors = tensors
        groups = slice(place.start // self.group, -(-place.stop // self.group))
        return [planes[:, bytes_of(place)], *(vector[groups] for vector in vectors)]

    def _values(self, count: int, planes: Tensor, minimum: Tensor, step: Tensor) -> Tensor:
        flat: Tensor = torch.ops.actfit.decode_groups(planes, minimum, step, self.group, count, self.dtype, [])
        return flat


class Sided(Groups):
    """Codes of groups that also tell, by 8 bits a group, which numbers are inside an interval with one end.

    Also of numbers of which a function is, if it rises or falls all through a group. With stochastic rounding, whose
    decoded values have the right mean, they are codes as others, and tell nothing.

    Parameters
    ----------
    inside
        bool, of the shape of `flat`.
    """

    def __init__(
        self, flat: Tensor, method: EveryTensor, group: int = MAX_GROUP, drawn: Drawn | None = None, *, inside: Tensor
    ) -> None:
        if method.rounding == "stochastic":
            super().__init__(flat, method, group, drawn)
            return
        self.count, self.dtype, self.group, self.unit = flat.numel(), flat.dtype, group, group
        *self._tensors, self.edges = torch.ops.actfit.encode_sides(flat, inside, group, method.bits)

    def _values(self, count: int, planes: Tensor, minimum: Tensor, step: Tensor) -> Tensor:
        return super()._values(count, planes, minimum, step.abs())

    def inside(self, tensors: list[Tensor], edges: Tensor, place: slice | None = None) -> Tensor:
        """Which numbers are inside, exactly, or those of a piece."""
        planes, _, step = tensors
        given, count = [planes, edges, step], self.count
        if place is not None:
            given, count = self._cut(given, place), place.stop - place.start
        planes, edges, step = given
        sign = 1 - 2 * step.signbit().float()
        return super()._values(count, planes, sign * (0.5 - edges.float()), sign) > 0


Grouped = Callable[..., Groups]  # Groups or a kind of it, which takes the same arguments


class Logarithms(Groups):
    """Codes of logarithms of probabilities, for a backward pass that uses the probabilities: of their square roots.

    Codes of the probabilities would round most of a group to its minimum, all in one direction; codes of the logarithms
    would make large probabilities several times as large.
    """

    def __init__(self, flat: Tensor, method: EveryTensor, group: int = MAX_GROUP, drawn: Drawn | None = None) -> None:
        super().__init__((flat / 2).exp_(), method, group, drawn)

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return self._of_roots(super().decode(tensors))

    def piece(self, tensors: list[Tensor], place: slice) -> Tensor:
        return self._of_roots(super().piece(tensors, place))

    def squares(self, decoded: Tensor, exact: Tensor) -> Tensor:
        return super().squares((decoded / 2).exp(), (exact / 2).exp())

    def _of_roots(self, roots: Tensor) -> Tensor:
        return roots.clamp_(min=torch.finfo(self.dtype).tiny).log_().mul_(2)


class Phases(Groups):
    """Codes of phases, for sine and cosine: of each, the phase within one period around the first of its group.

    A step of the phases themselves may be longer than a period.
    """

    def __init__(self, flat: Tensor, method: EveryTensor, group: int = MAX_GROUP, drawn: Drawn | None = None) -> None:
        wide = flat.to(computed(flat.dtype))
        phase = torch.atan2(wide.sin(), wide.cos())
        if phase.numel() % group == 0:  # else -pi and pi, though near, are apart
            near = phase.view(-1, group)
            turns = ((near - near[:, :1]) / (2 * math.pi)).round_()
            phase = near.sub(turns, alpha=2 * math.pi).view(-1)
        super().__init__(phase.to(flat.dtype), method, group, drawn)


class Bools(Encoded):
    """Bools, a bit each."""

    unit = 1

    def __init__(self, flat: Tensor) -> None:
        self.count, self._tensors = flat.numel(), [pack(flat.view(torch.uint8), 1)]

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return unpack(tensors[0], self.count).view(torch.bool)

    def piece(self, tensors: list[Tensor], place: slice) -> Tensor:
        return unpack(tensors[0][:, bytes_of(place)], place.stop - place.start).view(torch.bool)


class TwoNumbers(Bools):
    """Numbers that are all 0 or the maximum, as the noise of a dropout: a bit each."""

    def __init__(self, flat: Tensor) -> None:
        super().__init__(flat != 0)
        self._tensors.append(flat.amax())

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return super().decode(tensors) * tensors[1]

    def piece(self, tensors: list[Tensor], place: slice) -> Tensor:
        return super().piece(tensors, place) * tensors[1]


@dataclass(eq=False)
class SavedCode:
    """A code whose tensors the outer hooks may have packed.

    Attributes
    ----------
    code
        Of a flat tensor.
    packed, unpack
        The packed tensors of the code, and the function that unpacks one.
    lent
        Whether another value's code goes by it.
    """

    code: Encoded
    packed: Sequence[Any]
    unpack: Callable[[Any], Tensor]
    lent: bool = False

    _unpacked: list[Tensor] | None = field(default=None, repr=False)  # an outer checkpoint unpacks each only once

    def decode(self) -> Tensor:
        """The flat tensor, approximately."""
        return self.code.decode(self.tensors())

    def piece(self, place: slice) -> Tensor:
        """A piece of it, as `Encoded.unit` allows."""
        return self.code.piece(self.tensors(), place)

    def tensors(self) -> list[Tensor]:
        """The tensors of the code."""
        if self._unpacked is None:
            self._unpacked = list(map(self.unpack, self.packed))
        return self._unpacked
