"""Large flat tensors piece by piece: what is made of one before the next takes little memory, and stays in caches."""

from collections.abc import Callable, Iterable, Iterator
from math import lcm

import torch
from torch import Tensor

from kernels.engine import pieces as engine_pieces

# Elements of a piece, for each thread of a CPU, and of a GPU: there it takes longer than to launch its kernels.
A_THREAD, A_GPU = 1 << 20, 1 << 24
FEW = 3  # a tensor of no more pieces is made whole, in fewer calls


def common(units: Iterable[int | None]) -> int | None:
    """The unit of pieces that cut none of these units; None if one of them is."""
    whole = 1
    for unit in units:
        if unit is None:
            return None
        whole = lcm(whole, unit)
    return whole


def length_of(unit: int, device: torch.device) -> int:
    """Elements of a piece that cuts neither units nor the bytes of a bit plane; 0 if a unit is too large."""
    most = A_THREAD * torch.get_num_threads() if device.type == "cpu" else A_GPU
    whole = lcm(unit, 8)
    return most // whole * whole


def is_worth_cutting(count: int, unit: int, device: torch.device) -> bool:
    """Whether a tensor of so many elements has more than FEW pieces."""
    length = length_of(unit, device)
    return length > 0 and count > FEW * length


def pieces(count: int, unit: int, device: torch.device) -> Iterator[slice]:
    """Slices of so many elements."""
    return engine_pieces.pieces(count, (unit,), length_of(unit, device))


def joined(count: int, places: Iterator[slice], make: Callable[[slice], Tensor]) -> Tensor:
    """The flat tensor of so many elements of which `make` makes pieces."""
    whole: Tensor | None = None
    for place in places:
        part = make(place)
        if whole is None:
            whole = part.new_empty(count)
        whole[place] = part
    if whole is None:
        raise ValueError("places must not be empty, got no slice")
    return whole
