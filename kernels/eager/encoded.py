"""Codes of the tensors that autograd saves: what is kept, and the tensor made of it again."""

from typing import Protocol

import torch
from torch import Tensor

import kernels.engine.ops  # noqa: F401 - registers the ops
from kernels.engine.elements import computed
from kernels.engine.planes import pack, unpack
from kernels.methods.compressed import GROUP
from kernels.methods.every_tensor import EveryTensor


class Encoded(Protocol):
    """What is kept of a flat tensor."""

    def tensors(self) -> list[Tensor]:
        """All that is kept."""

    def decode(self, tensors: list[Tensor]) -> Tensor:
        """The flat tensor, of what `tensors` gave."""


class Groups:
    """Codes of the numbers in each group of neighbours, from the group's minimum on by its step."""

    def __init__(self, flat: Tensor, method: EveryTensor, group: int = GROUP) -> None:
        self.count, self.dtype, self.group = flat.numel(), flat.dtype, group
        minimum, step = torch.ops.actfit.ends(flat, group, 1, self.count, method.bits)
        wide = computed(flat.dtype)
        noise = torch.full((1,), 0.5, dtype=wide, device=flat.device)
        if method.rounding == "stochastic":
            noise = torch.rand(flat.shape, dtype=wide, device=flat.device)
        inverse = torch.where(step > 0, 1 / step.to(wide), 0)
        place = self.group, 1, self.count
        offset = torch.zeros_like(inverse)
        planes = torch.ops.actfit.encode(flat, minimum.to(wide), inverse, offset, noise, *place, method.bits)
        self._tensors = [planes, minimum, step]

    def tensors(self) -> list[Tensor]:
        return self._tensors

    def decode(self, tensors: list[Tensor]) -> Tensor:
        planes, minimum, step = tensors
        unsigned = None, None, 1, None, 0.0, False
        place = self.group, 1, self.count
        flat: Tensor = torch.ops.actfit.decode(planes, step, minimum, *place, *unsigned, self.count, self.dtype)
        return flat


class Logarithms(Groups):
    """Codes of the exponentials of logarithms of probabilities: backward uses the exponentials."""

    def __init__(self, flat: Tensor, method: EveryTensor, group: int = GROUP) -> None:
        super().__init__(flat.exp(), method, group)

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return super().decode(tensors).clamp_(min=torch.finfo(self.dtype).tiny).log_()


class Bools:
    """A bit for each."""

    def __init__(self, flat: Tensor) -> None:
        self.count, self._tensors = flat.numel(), [pack(flat.view(torch.uint8), 1)]

    def tensors(self) -> list[Tensor]:
        return self._tensors

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return unpack(tensors[0], self.count).view(torch.bool)


class TwoNumbers(Bools):
    """A bit for each of numbers that are 0 or the largest one, as the noise of a dropout."""

    def __init__(self, flat: Tensor) -> None:
        super().__init__(flat != 0)
        self._tensors.append(flat.amax())

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return super().decode(tensors) * tensors[1]


class Places:
    """Whole numbers below a bound, in fewer bytes."""

    def __init__(self, flat: Tensor, bound: int) -> None:
        self.dtype = flat.dtype
        self._tensors = [
            flat.to(next(kind for kind in (torch.uint8, torch.int16, torch.int32) if bound <= _range(kind)))
        ]

    def tensors(self) -> list[Tensor]:
        return self._tensors

    def decode(self, tensors: list[Tensor]) -> Tensor:
        return tensors[0].to(self.dtype)


def _range(dtype: torch.dtype) -> int:
    return int(torch.iinfo(dtype).max) + 1
