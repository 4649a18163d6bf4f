"""Encodes tensors by each scheme, and restores them from their codes."""

from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import kernels.engine.ops  # noqa: F401 - registers the ops
from kernels.approx_backprop.memory_layout import MemoryLayout
from kernels.engine.elements import INTEGERS, computed
from kernels.methods.compressed import Compressed


class Encoded(NamedTuple):
    """The tensors that autograd saves in place of a tensor.

    Attributes
    ----------
    codes
        Bit planes, or the whole tensor.
    minimum, scale
        One of each for a group: code c stands for minimum + c * scale.
    gain, bias
        The norm's parameters, of channels or of features.
    signs
        A bit plane: whether the norm's result is above 0.
    """

    codes: Tensor
    minimum: Tensor | None = None
    scale: Tensor | None = None
    gain: Tensor | None = None
    bias: Tensor | None = None
    signs: Tensor | None = None


@dataclass(frozen=True)
class Encoding:
    """How to restore a tensor from its codes.

    Attributes
    ----------
    method
        The method that encoded it.
    layout, dtype
        The tensor's layout and dtype.
    normed
        Whether it is a norm's result.
    inner
        Number of consecutive elements that share an entry of gain and bias.
    slope
        The slope below 0 of a ReLU that followed, or None.
    """

    method: Compressed
    layout: MemoryLayout
    dtype: torch.dtype
    normed: bool = False
    inner: int = 1
    slope: float | None = None

    @property
    def tells_sign(self) -> bool:
        """Whether the codes alone determine which elements are above 0."""
        return self.normed and self.method.scheme in ("paper", "fused")


def affordable(x: Tensor, method: Compressed, layout: MemoryLayout) -> Compressed:
    """`method` with scheme "group"; "fused" where, with so few tokens, codes would take as much as the tensor."""
    if method.exact or layout.bytes_of(method.bits) >= x.numel() * x.element_size():
        return replace(method, scheme="fused", clip=None)
    return replace(method, scheme="group", clip=None)


def encode(x: Tensor, method: Compressed, layout: MemoryLayout) -> tuple[Encoding, Encoded]:
    """Encodes any tensor by groups; "fused" saves the tensor itself."""
    x = x.detach()
    method = affordable(x, method, layout)
    encoding = Encoding(method, layout, x.dtype)
    return encoding, Encoded(x) if method.exact else Encoded(*grouped(x, method, layout))


def grouped(x: Tensor, method: Compressed, layout: MemoryLayout) -> tuple[Tensor, Tensor, Tensor]:
    """The codes of any tensor, and the minimum and scale of each group."""
    flat = layout.flat(x)
    is_random = method.rounding == "stochastic"
    noise = torch.rand_like(flat, dtype=computed(x.dtype)) if is_random else None
    planes_and_ends: tuple[Tensor, Tensor, Tensor] = torch.ops.actfit.encode_groups(
        flat, noise, *layout.group, method.bits
    )
    return planes_and_ends


def fixed(x: Tensor, mean: Tensor, invstd: Tensor, method: Compressed, layout: MemoryLayout) -> Tensor:
    """The codes of the normalised x on the fixed range."""
    wide = computed(x.dtype)
    inverse = invstd.to(wide) * (2**method.bits / (2 * method.reach))
    offset = torch.full_like(inverse, 2 ** (method.bits - 1))
    rows = layout.inner, 1, layout.inner
    codes: Tensor = torch.ops.actfit.encode(layout.flat(x), mean.to(wide), inverse, offset, None, *rows, method.bits)
    return codes


def by_paper(y: Tensor, gain: Tensor | None, bias: Tensor | None, method: Compressed, layout: MemoryLayout) -> Tensor:
    """The codes of a batch norm's result by eq. 9 of the paper."""
    like = torch.ones(layout.shape[1], dtype=computed(y.dtype), device=y.device)
    _, _, inverse, floor = _paper(gain, bias, method, like)
    offset = 2 ** (method.bits - 1) - floor
    zeros, rows = torch.zeros_like(inverse), (layout.inner, 1, layout.inner)
    codes: Tensor = torch.ops.actfit.encode(layout.flat(y), zeros, inverse, offset, None, *rows, method.bits)
    return codes


def _paper(gain: Tensor | None, bias: Tensor | None, method: Compressed, ones: Tensor) -> tuple[Tensor, ...]:
    """Gain and bias in the dtype of `ones`, the inverse of the scale, and the bias in scales, rounded down."""
    gain = ones if gain is None else gain.to(ones.dtype)
    bias = torch.zeros_like(ones) if bias is None else bias.to(ones.dtype)
    inverse = 2**method.bits / (6 * gain)
    return gain, bias, inverse, torch.floor(bias * inverse)


def marked(a: Tensor, y: Tensor) -> Tensor:
    """The normalised input with its lowest bit set where the norm's result is above 0, as `rectify` compares."""
    bits = a.view(INTEGERS[a.dtype])
    return torch.where(y <= 0, bits & ~1, bits | 1).view(a.dtype)


def restored(encoding: Encoding, encoded: Encoded, *, normal: bool = False) -> Tensor:
    """The tensor, approximately; with `normal` the normalised input of the norm whose result it is."""
    if encoding.method.exact:
        return _whole(encoding, encoded, normal)
    wide, count = computed(encoding.dtype), prod(encoding.layout.shape)
    gain, bias = (
        None if parameter is None or normal else parameter.flatten() for parameter in (encoded.gain, encoded.bias)
    )
    rows = encoding.inner, 1, encoding.inner
    if encoded.minimum is not None and encoded.scale is not None:
        scale, minimum, rows = encoded.scale, encoded.minimum, encoding.layout.group
    elif encoding.method.scheme == "paper":
        scale, minimum = _paper_scales(encoding, encoded, normal)
        gain, bias = None, None
    else:
        width = 2 * encoding.method.reach / 2**encoding.method.bits / encoding.method.shrinkage
        scale = torch.full((1,), width, dtype=wide, device=encoded.codes.device)
        minimum = scale * (0.5 - 2 ** (encoding.method.bits - 1))
    signs, slope = (None, 0.0) if normal or encoding.slope is None else (encoded.signs, encoding.slope)
    clamp = encoding.method.rounding == "nearest"
    half = encoding.dtype == torch.float16
    dtype = wide if half else encoding.dtype
    signed = gain, bias, encoding.inner, signs, slope, clamp
    flat = torch.ops.actfit.decode(encoded.codes, scale, minimum, *rows, *signed, count, dtype)
    if half:  # the last code may lie beyond float16's range
        most = torch.finfo(torch.float16).max
        flat = flat.clamp_(-most, most).to(torch.float16)
    values = encoding.layout.whole(flat)
    if encoding.method.scheme == "paper" and encoding.slope is not None and not normal:  # codes determine the sign
        return F.leaky_relu(values, encoding.slope) if encoding.slope else F.relu(values)
    return values


def above(encoding: Encoding, encoded: Encoded) -> Tensor:
    """Where a norm's result is above 0, from the codes of a scheme that saves no plane for it; bool."""
    if encoding.method.exact:
        return (encoded.codes.view(INTEGERS[encoding.dtype]) & 1).bool()
    return restored(replace(encoding, slope=None), encoded) > 0


def _paper_scales(encoding: Encoding, encoded: Encoded, normal: bool) -> tuple[Tensor, Tensor]:
    """The scale and offset of each channel, by eq. 10."""
    like = torch.ones(encoding.layout.shape[1], dtype=computed(encoding.dtype), device=encoded.codes.device)
    gain, bias, inverse, floor = _paper(encoded.gain, encoded.bias, encoding.method, like)
    places = 0.5 - 2 ** (encoding.method.bits - 1) + floor
    if not normal:
        return 1 / inverse, places / inverse
    width = 6 / 2**encoding.method.bits
    return torch.full_like(inverse, width), places * width - bias / gain


def _whole(encoding: Encoding, encoded: Encoded, normal: bool) -> Tensor:
    """The tensor, or the normalised input, from an input that is saved whole."""
    if not encoding.normed or normal:
        return encoded.codes
    flat = encoding.layout.flat(encoded.codes)
    values = flat.to(computed(encoding.dtype))
    for vector, combine in ((encoded.gain, torch.mul), (encoded.bias, torch.add)):
        if vector is not None:
            rows = vector.flatten().to(values.dtype)[:, None]
            values = combine(values.reshape(-1, len(rows), encoding.inner), rows)
    whole = encoding.layout.whole(values.to(encoding.dtype).view(flat.shape))
    if encoding.slope is None:
        return whole
    return torch.where(above(encoding, encoded), whole.clamp(min=0), encoding.slope * whole.clamp(max=0))
