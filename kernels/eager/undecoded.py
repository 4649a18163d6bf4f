"""Saved tensors that backward reads piece by piece.

The derivative of an element-wise function needs each element of a saved tensor once. Decoded whole, that tensor would
be alive beside two gradients of its size, and a step's peak is often there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kernels import private
from kernels.eager.cutting import common, is_worth_cutting, pieces
from kernels.eager.tensors import ViewGeometry
from kernels.eager.values import Recent, Value

# What autograd calls in backward; each element of the result is made of one element of each tensor.
NAMES = (
    *("gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward", "softplus_backward", "elu_backward"),
    *("hardswish_backward", "hardsigmoid_backward", "hardtanh_backward", "threshold_backward"),
    *("leaky_relu_backward", "native_dropout_backward"),
)
_PACKETS = [getattr(torch.ops.aten, name) for name in NAMES]
# Each operator, and the one that writes the result into an argument.
INTO: dict[Any, Any] = {
    torch.ops.aten.mul.Tensor: torch.ops.aten.mul.out,
    **{packet.default: packet.grad_input if "grad_input" in packet.overloads() else packet.out for packet in _PACKETS},
}


class Shape(NamedTuple):
    """What a tensor is besides its contents."""

    geometry: ViewGeometry
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(x: Tensor) -> "Shape":
        """That of a tensor."""
        return Shape(ViewGeometry.of(x), x.dtype, x.device)


class Undecoded(Tensor):
    """A tensor in codes: an element-wise function of INTO decodes it by pieces, any other function whole."""

    value: Value
    like: Shape
    recent: Recent
    _whole: Tensor | None

    __torch_function__ = nn.Parameter.__torch_function__  # no mode is asked

    @staticmethod
    def __new__(cls, value: Value, like: Shape, recent: Recent) -> "Undecoded":
        size, strides, offset = like.geometry
        made: Undecoded = Tensor._make_wrapper_subclass(
            cls, size, strides=strides, storage_offset=offset, dtype=like.dtype, device=like.device
        )
        made.value, made.like, made.recent, made._whole = value, like, recent, None
        return made

    def __repr__(self, **_: Any) -> str:
        return f"Undecoded({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return Undecoded(args[0].value, args[0].like, args[0].recent)
        if function in INTO:
            result = _by_pieces(INTO[function], args, kwargs or {})
            if result is not None:
                return result
        args, kwargs = private.tree_map(_decoded, (args, kwargs or {}))
        return function(*args, **kwargs)

    def decoded(self) -> Tensor:
        """The tensor; the same object each time."""
        if self._whole is None:
            self._whole = self.value.flat(self.recent).as_strided(*self.like.geometry)
        return self._whole


def may_be_read_by_pieces(value: Value, like: Shape) -> bool:
    """Whether a value can be decoded by pieces, has enough of them, and its elements fill their memory."""
    unit = value.unit
    return unit is not None and like.geometry.is_packed() and is_worth_cutting(like.geometry.numel(), unit, like.device)


def _decoded(x: Any) -> Any:
    return x.decoded() if isinstance(x, Undecoded) else x


def _by_pieces(into: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """What an element-wise operator writes, made in the order of memory; None if tensors differ in it, or in type.

    into: the operator; its last argument is the one that it writes into.
    """
    given = [x for x in args if isinstance(x, Tensor)]
    undecoded = [x for x in given if isinstance(x, Undecoded)]
    size, stride, _ = undecoded[0].like.geometry
    unit = common(x.value.unit for x in undecoded)
    types = {x.dtype for x in given} - {torch.bool}
    if unit is None or len(types) > 1 or any((x.size(), x.stride()) != (size, stride) for x in given):
        return None
    like = next(x for x in given if x.dtype != torch.bool)
    result = torch.empty_strided(size, stride, dtype=like.dtype, device=like.device)
    written = into._schema.arguments[-1].name
    for place in pieces(result.numel(), unit, result.device):
        parts = [_part(x, place) if isinstance(x, Tensor) else x for x in args]
        into(*parts, **kwargs, **{written: _part(result, place)})
    for x in undecoded:
        x.value.used(x.recent)
    return result


def _part(x: Tensor, place: slice) -> Tensor:
    if isinstance(x, Undecoded):
        return x.value.piece(place)
    return x.as_strided((place.stop - place.start,), (1,), x.storage_offset() + place.start)
