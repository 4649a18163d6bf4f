"""Codes of the tensors that autograd saves: what is kept, and the tensor made of it again."""

import itertools
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from kernels.eager.tensors import version_of
from kernels.engine.elements import computed
from kernels.engine.groups import encode_groups
from kernels.engine.planes import pack, unpack
from kernels.methods.every_tensor import GROUP, EveryTensor


def changed(x: Tensor, expected: int) -> RuntimeError:
    """As autograd says it."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation:"
        f" {tuple(x.shape)} is at version {version_of(x)}; expected version {expected}"
    )


class Encoded(ABC):
    """How a flat tensor was coded."""

    _tensors: list[Tensor]

    def parts(self) -> list[Tensor]:
        """What is to be kept, until it is handed over."""
        return self._tensors

    def hand_over(self) -> list[Tensor]:
        """What is to be kept. It is not held here any more: hooks of others may move it to where there is room."""
        tensors, self._tensors = self._tensors, []
        return tensors

    @abstractmethod
    def decode(self, tensors: list[Tensor]) -> Tensor:
        """The flat tensor, of what was handed over."""


class Same(Encoded):
    """No code: the tensor, which nobody must change in place before backward has it.

    Parameters
    ----------
    flat
        The tensor.
    counted
        Whether its own changes are counted when it is decoded: it is not another one, which hooks around ours made.
    """

    def __init__(self, flat: Tensor, counted: bool) -> None:
        self._tensors, self._version = [flat], flat._version if counted else None

    def decode(self, tensors: list[Tensor]) -> Tensor:
        """Raises RuntimeError, as autograd does, if it was changed since."""
        if self._version is not None and tensors[0]._version != self._version:
            raise changed(tensors[0], self._version)
        return tensors[0]


class Drawn:
    """Random numbers for the codes of one forward pass, none of which PyTorch's own generators give.

    So dropout drops what it would drop without codes. The seed follows from the state of the CPU's generator, and from
    how many passes there were, as that state may be the same in the next.
    """

    _passes = itertools.count()

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            self._seed = (int(torch.randint(2**62, ())) + next(self._passes)) % 2**62
        self._generators: dict[torch.device, torch.Generator] = {}

    def like(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """As many numbers from [0, 1) as x has."""
        if x.device not in self._generators:
            self._generators[x.device] = torch.Generator(x.device).manual_seed(self._seed)
        return torch.rand(x.shape, dtype=dtype, device=x.device, generator=self._generators[x.device])


class Groups(Encoded):
    """Codes of the numbers in each group of neighbours, from the group's minimum on by its step."""

    def __init__(self, flat: Tensor, method: EveryTensor, group: int = GROUP, drawn: Drawn | None = None) -> None:
        self.count, self.dtype, self.group = flat.numel(), flat.dtype, group
        is_random = method.rounding == "stochastic"
        noise = (drawn or Drawn()).like(flat, computed(flat.dtype)) if is_random else None
        self._tensors = list(encode_groups(flat, (group, 1, self.count), method.bits, noise))

    def decode(self, tensors: list[Tensor]) -> Tensor:
        planes, minimum, step = tensors
        unsigned = None, None, 1, None, 0.0, False
        place = self.group, 1, self.count
        half = self.dtype == torch.float16  # the last code may reach further than there are numbers
        dtype = torch.float32 if half else self.dtype
        flat: Tensor = torch.ops.actfit.decode(planes, step, minimum, *place, *unsigned, self.count, dtype)
        most = torch.finfo(self.dtype).max
        return flat.clamp_(-most, most).to(self.dtype) if half else flat


class Logarithms(Groups):
    """Codes of the square roots of the probabilities whose logarithms are given: backward uses the probabilities.

    Codes of probabilities themselves would round most of a group to its minimum, all in one direction; codes of their
    logarithms would make large ones several times as large.
    """

    def __init__(self, flat: Tensor, method: EveryTensor, group: int = GROUP, drawn: Drawn | None = None) -> None:
        super().__init__((flat / 2).exp(), method, group, drawn)

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return super().decode(tensors).clamp_(min=torch.finfo(self.dtype).tiny).log_().mul_(2)


class Bools(Encoded):
    """A bit for each."""

    def __init__(self, flat: Tensor) -> None:
        self.count, self._tensors = flat.numel(), [pack(flat.view(torch.uint8), 1)]

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return unpack(tensors[0], self.count).view(torch.bool)


class TwoNumbers(Bools):
    """A bit for each of numbers that are 0 or the largest one, as the noise of a dropout."""

    def __init__(self, flat: Tensor) -> None:
        super().__init__(flat != 0)
        self._tensors.append(flat.amax())

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return super().decode(tensors) * tensors[1]
