"""Operations that can wait until logits are made: of single elements, or of rows alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

# Not to float16: gradients of a loss that no scaler has multiplied would be too small there.
CASTS = {"float", "bfloat16", "double"}
OF_NUMBERS = {
    *("mul", "multiply", "__mul__", "__rmul__", "div", "true_divide", "divide", "__truediv__"),
    *("add", "__add__", "__radd__", "sub", "__sub__"),
}


@dataclass(frozen=True)
class Step:
    """An operation of single elements, with what it is given besides the tensor."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()

    def __call__(self, values: Tensor) -> Tensor:
        made: Tensor = self.function(values, *self.args)
        return made


def step_of(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Step | None:
    """The call as a step, if it is an operation of single elements; `args` are those after the tensor."""
    if kwargs:
        return None
    if name in CASTS or name == "tanh":
        return Step(function) if not args else None
    if name in ("to", "type"):
        casts = len(args) == 1 and isinstance(args[0], torch.dtype) and args[0] != torch.float16
        return Step(function, tuple(args)) if casts else None
    if name in OF_NUMBERS and len(args) == 1 and type(args[0]) in (int, float):
        return Step(function, tuple(args))
    return None


def log_softmax(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], classes: int, dimensions: int
) -> Step | None:
    """The call as a step of rows, if it is log_softmax over classes; `classes`: their dimension, counted from the last.

    torch and F take the dtype by name; F passes on the level of a warning, too.
    """
    if name != "log_softmax" or len(args) > 1:
        return None
    dimension, dtype = kwargs.get("dim", *args), kwargs.get("dtype")
    if dimension not in (classes, classes + dimensions) or dtype == torch.float16:
        return None
    return Step(partial(torch.log_softmax, dim=-1, dtype=dtype))


def turns(name: str, args: Sequence[Any], dimensions: int) -> bool:
    """Whether a call swaps the last two of three dimensions, as F.cross_entropy wants classes."""
    places = tuple(args[0]) if len(args) == 1 and isinstance(args[0], Sequence) else tuple(args)
    if dimensions != 3 or not all(type(place) is int for place in places):
        return False
    found = tuple(place % 3 for place in places)
    if name == "permute":
        return found == (0, 2, 1)
    return name == "mT" or (name in ("transpose", "swapaxes", "swapdims", "movedim") and {*found} == {1, 2})


def rows_moved(name: str, args: Sequence[Any], x: Tensor, classes: int) -> Tensor | None:
    """`x`, of which the last dimension stands for the classes, as the call moves rows; None if it moves more."""
    if name == "contiguous":
        return x if not args else None
    if name == "flatten":
        return x.flatten(0, -2) if tuple(args) in ((0, -2), (0, x.dim() - 2)) else None
    if name in ("view", "reshape"):
        sizes = tuple(args[0]) if len(args) == 1 and isinstance(args[0], Sequence) else tuple(args)
        if len(sizes) < 2 or not all(type(size) is int for size in sizes):
            return None
        return x.reshape(*sizes[:-1], x.shape[-1]) if _keeps_rows(sizes, x, classes) else None
    if name == "__getitem__" and len(args) == 1 and _leaves_classes(args[0], x.dim()):
        moved: Tensor = x[args[0]]
        return moved
    return None


def _keeps_rows(sizes: tuple[int, ...], x: Tensor, classes: int) -> bool:
    """Whether the last dimension of a new shape is that of the classes."""
    if sizes[-1] == -1:
        before = torch.Size(sizes[:-1]).numel()
        return bool(0 < before == x.shape[:-1].numel())
    return sizes[-1] == classes


def _leaves_classes(index: Any, dimensions: int) -> bool:
    """Whether an index is of slices, and takes all of the last dimension."""
    places = index if isinstance(index, tuple) else (index,)
    last = places[-1] if places else Ellipsis
    if not all(place is Ellipsis or isinstance(place, slice) for place in places):
        return False
    slices = sum(isinstance(place, slice) for place in places)
    reaches_last = slices == dimensions or (last is not Ellipsis and Ellipsis in places)
    return last == slice(None) if reaches_last else True
