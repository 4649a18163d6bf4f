"""Codes of the tensors that autograd saves: encoding and decoding."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

import kernels.engine.ops  # noqa: F401 - registers the ops
from kernels.eager.tensors import version_of
from kernels.engine.elements import computed
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
    edges
        If the code tells on which side of a threshold each number is, where in each group codes change sides; until
        they are handed over.
    """

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
        self.count, self.dtype, self.group = flat.numel(), flat.dtype, group
        is_random = method.rounding == "stochastic"
        noise = (drawn or Drawn()).like(flat, computed(flat.dtype)) if is_random else None
        self._tensors = list(torch.ops.actfit.encode_groups(flat, noise, group, 1, max(self.count, 1), method.bits))

    def decode(self, tensors: list[Tensor]) -> Tensor:
        planes, minimum, step = tensors
        half = self.dtype == torch.float16  # the last code may decode to more than the largest float16
        flat = self._values(planes, minimum, step, torch.float32 if half else self.dtype)
        most = torch.finfo(self.dtype).max
        return flat.clamp_(-most, most).to(self.dtype) if half else flat

    def _values(self, planes: Tensor, minimum: Tensor, step: Tensor, dtype: torch.dtype) -> Tensor:
        """code * step + minimum."""
        unsigned = None, None, 1, None, 0.0, False
        place = self.group, 1, max(self.count, 1)
        flat: Tensor = torch.ops.actfit.decode(planes, step, minimum, *place, *unsigned, self.count, dtype)
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
        self.count, self.dtype, self.group = flat.numel(), flat.dtype, group
        *self._tensors, self.edges = torch.ops.actfit.encode_sides(flat, inside, group, method.bits)

    def decode(self, tensors: list[Tensor]) -> Tensor:
        planes, minimum, step = tensors
        return super().decode([planes, minimum, step.abs()])

    def inside(self, tensors: list[Tensor], edges: Tensor) -> Tensor:
        """Which numbers are inside, exactly."""
        planes, _, step = tensors
        sign = 1 - 2 * step.signbit().float()
        return self._values(planes, sign * (0.5 - edges.float()), sign, torch.float32) > 0


Grouped = Callable[..., Groups]  # Groups or a kind of it, which takes the same arguments


class Logarithms(Groups):
    """Codes of logarithms of probabilities, for a backward pass that uses the probabilities: of their square roots.

    Codes of the probabilities would round most of a group to its minimum, all in one direction; codes of the logarithms
    would make large probabilities several times as large.
    """

    def __init__(self, flat: Tensor, method: EveryTensor, group: int = MAX_GROUP, drawn: Drawn | None = None) -> None:
        super().__init__((flat / 2).exp(), method, group, drawn)

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return super().decode(tensors).clamp_(min=torch.finfo(self.dtype).tiny).log_().mul_(2)


class Bools(Encoded):
    """Bools, a bit each."""

    def __init__(self, flat: Tensor) -> None:
        self.count, self._tensors = flat.numel(), [pack(flat.view(torch.uint8), 1)]

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return unpack(tensors[0], self.count).view(torch.bool)


class TwoNumbers(Bools):
    """Numbers that are all 0 or the maximum, as the noise of a dropout: a bit each."""

    def __init__(self, flat: Tensor) -> None:
        super().__init__(flat != 0)
        self._tensors.append(flat.amax())

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return super().decode(tensors) * tensors[1]
