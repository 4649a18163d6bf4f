"""Codes in the graphs of a block: each is one call, of our own kernels.

Graphs that run operation by operation call the functions, without PyTorch's dispatcher; those that Inductor compiles,
the operations that are registered for them, which it neither looks into nor fuses, where it does not code by itself.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from actfit.kernels import private
from actfit.kernels.compression.layout import DEFAULT_GROUP
from actfit.kernels.engine import ops
from actfit.kernels.engine.codes import narrowed
from actfit.kernels.engine.elements import computed
from actfit.kernels.methods.approximate_activations import shrinkage, step
from actfit.kernels.private import is_fake


def encode(
    x: Tensor, order: Sequence[int], group: int, bits: int, stochastic: bool, of_roots: bool, carries: bool
) -> list[Tensor]:
    """Codes, uint8, bytes if of 8 bits, else planes [bits, bytes]; minima and scales, bfloat16 [groups], of a tensor.

    Parameters
    ----------
    order
        The dimensions by descending stride.
    of_roots
        Whether to encode the roots of x, in float32, as a square doubles the error of a rounded root.
    carries
        Whether a tensor without elements that has the sizes of x comes last; backward needs them where they change.
    """
    flat = flat_of(x.float().sqrt() if of_roots else x, order)
    noise = _uniform(flat) if stochastic else None
    return [*ops.encode_groups(flat, noise, group, bits), *carrier(x, carries)]


def encode_input(x: Tensor, order: Sequence[int], *options: Any) -> list[Tensor]:
    """As `encode`, of what a block is given: blocks share the codes of one tensor, as of an encoder's output."""
    how = x._version, tuple(order), *options
    known, codes = _known().get(x, (None, ()))
    shared = [code() for code in codes] if known == how else []
    if shared and all(code is not None for code in shared):
        return [code.view_as(code) for code in shared]
    made: list[Tensor] = encode(x, order, *options)
    _known()[x] = how, [private.TensorWeakRef(code) for code in made]
    return made


@cache
def _known() -> Any:
    """By a tensor: its version, how it was encoded, and its codes; all of them held weakly."""
    return private.WeakTensorKeyDictionary()


def _uniform(x: Tensor) -> Tensor:
    """Numbers from [0, 1), drawn apart from PyTorch's own, of which dropout gets the same as without codes."""
    if is_fake(x) or (x.is_cuda and torch.cuda.is_current_stream_capturing()):  # a CUDA graph knows no others
        return torch.rand_like(x, dtype=torch.float32)
    return torch.rand(x.shape, dtype=torch.float32, device=x.device, generator=drawing(x.device, torch.initial_seed()))


@lru_cache(maxsize=64)
def drawing(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def decode(
    codes: Tensor,
    minimum: Tensor,
    scale: Tensor,
    sized: Tensor | None,
    shape: Sequence[int],
    order: Sequence[int],
    group: int,
    dtype: torch.dtype,
    of_roots: bool,
) -> Tensor:
    """The tensor of `encode` or `encode_normalized`.

    Parameters
    ----------
    sized
        The one without elements, which says the shape if it is given.
    group
        Elements of a group; 0: minima and scales are those of channels.
    """
    sizes = shape if sized is None else sized.shape[:-1]
    if not group:
        flat = ops.decode_groups(
            codes, *_ends_of_all(codes, prod(sizes), 0), DEFAULT_GROUP, prod(sizes), computed(dtype)
        )
        values = shaped(flat, sizes, order)
        return narrowed(values.mul_(_of_channels(scale, values)).add_(_of_channels(minimum, values)), dtype)
    flat = ops.decode_groups(codes, minimum, scale, group, prod(sizes), torch.float32 if of_roots else dtype)
    return shaped(flat.square_().to(dtype) if of_roots else flat, sizes, order)


def encode_normalized(
    x: Tensor, normed: Sequence[Tensor], order: Sequence[int], bits: int, carries: bool
) -> list[Tensor]:
    """Codes, minima and scales by channels of what a batch norm with the results `normed` normalises."""
    mean, inverse = normed[1], normed[2]
    scale = step(bits) / shrinkage(bits) / inverse
    lowest = 0.5 - 2 ** (bits - 1)  # the number of the first code, in steps from the mean
    places = (x - _of_channels(mean, x)).mul_(_of_channels(inverse / step(bits), x))
    codes = ops.encode(flat_of(places, order), *_ends_of_all(x, x.numel(), lowest), None, DEFAULT_GROUP, bits)
    return [codes, mean + scale * lowest, scale, *carrier(x, carries)]


def _of_channels(vector: Tensor, x: Tensor) -> Tensor:
    """The entry of each channel, the second dimension of x, as x is computed."""
    return vector.to(computed(x.dtype)).view(-1, *[1] * (x.dim() - 2))


def _ends_of_all(like: Tensor, count: int, minimum: float) -> tuple[Tensor, Tensor]:
    """One minimum, and steps of 1, for all groups of so many elements; bfloat16 holds them exactly."""
    ones = like.new_ones(-(-count // DEFAULT_GROUP), dtype=torch.bfloat16)
    return minimum * ones, ones


def pack(x: Tensor, order: Sequence[int], carries: bool) -> list[Tensor]:
    """Bools, a bit each, uint8 [bytes]; `carries` as in `encode`."""
    return [ops.pack(flat_of(x, order)), *carrier(x, carries)]


def unpack(packed: Tensor, sized: Tensor | None, shape: Sequence[int], order: Sequence[int]) -> Tensor:
    """The tensor of `pack`."""
    sizes = shape if sized is None else sized.shape[:-1]
    return shaped(ops.unpack(packed, prod(sizes)), sizes, order)


def carrier(x: Tensor, carries: bool) -> list[Tensor]:
    return [x.new_empty((*x.shape, 0))] if carries else []


def flat_of(x: Tensor, order: Sequence[int]) -> Tensor:
    """A dense tensor as it lies in memory."""
    return (x if _is_ascending(order) else x.permute(*order)).reshape(-1)


def shaped(flat: Tensor, sizes: Sequence[int], order: Sequence[int]) -> Tensor:
    if _is_ascending(order):
        return flat.view(sizes)
    return flat.view([sizes[dim] for dim in order]).permute([order.index(dim) for dim in range(len(order))])


def _is_ascending(order: Sequence[int]) -> bool:
    return list(order) == sorted(order)


_ENCODE = "(Tensor x, int[] order, int group, int bits, bool stochastic, bool of_roots, bool carries) -> Tensor[]"
_SCHEMAS: dict[Callable[..., Any], str] = {
    encode: _ENCODE,
    encode_input: _ENCODE,
    decode: "(Tensor codes, Tensor minimum, Tensor scale, Tensor? sized, int[] shape, int[] order, int group,"
    " ScalarType dtype, bool of_roots) -> Tensor",
    pack: "(Tensor x, int[] order, bool carries) -> Tensor[]",
    unpack: "(Tensor packed, Tensor? sized, int[] shape, int[] order) -> Tensor",
}


# When this is imported: code from Inductor's cache calls them in a process that cuts no graph.
for _function, _schema in _SCHEMAS.items():
    _name = f"actfit::{_function.__name__}"
    torch.library.define(_name, _schema, tags=ops.STRIDES)
    torch.library.impl(_name, "CompositeExplicitAutograd", _function)
    torch.library.register_fake(_name, encode if _function is encode_input else _function)


def operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as an operation of PyTorch."""
    made: Callable[..., Any] = getattr(torch.ops.actfit, function.__name__).default
    return made
