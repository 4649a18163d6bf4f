"""Codes of tensors by each scheme, and the tensors made of them again."""

from dataclasses import replace
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

import kernels.approx_backprop.ops  # noqa: F401 - registers the ops
from kernels.approx_backprop.copies import Copy, Form, Kept, Layout
from kernels.approx_backprop.how import How
from kernels.approx_backprop.reference import computed

_INTEGERS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


def affordable(x: Tensor, how: How, layout: Layout) -> How:
    """`how` by groups; or by fused, where codes of so few tokens would take as much as the tensor itself."""
    if how.scheme == "fused" or layout.bytes_of(how.bits) >= x.numel() * x.element_size():
        return replace(how, scheme="fused", clip=None)
    return replace(how, scheme="group", clip=None)


def copied(x: Tensor, how: How, layout: Layout) -> Copy:
    """A copy of any tensor by groups, or by fused the tensor."""
    x = x.detach()
    how = affordable(x, how, layout)
    form = Form(how, layout, x.dtype)
    return Copy(form, Kept(x) if how.scheme == "fused" else Kept(*grouped(x, how, layout)))


def grouped(x: Tensor, how: How, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, least and step by groups, of any tensor."""
    flat = layout.flat(x)
    least, step = torch.ops.actfit.ends(flat, *layout.group, how.bits)
    shape = flat.shape if how.rounding == "stochastic" else (1,)
    noise = torch.full(shape, 0.5, dtype=computed(x.dtype), device=x.device)
    if how.rounding == "stochastic":
        noise = torch.rand_like(noise)
    width = step.to(noise.dtype)
    scale = torch.where(width > 0, 1 / width, 0)
    zeros = torch.zeros_like(least)
    return torch.ops.actfit.encode(flat, least, scale, zeros, noise, *layout.group, how.bits), least, step


def fixed(x: Tensor, mean: Tensor, invstd: Tensor, how: How, layout: Layout) -> Tensor:
    """Codes of the normalised x on the fixed range."""
    wide = computed(x.dtype)
    scale = invstd.to(wide) * (2**how.bits / (2 * how.reach))
    offset = torch.full_like(scale, 2 ** (how.bits - 1))
    rows = layout.inner, 1, layout.inner
    codes: Tensor = torch.ops.actfit.encode(layout.flat(x), mean.to(wide), scale, offset, None, *rows, how.bits)
    return codes


def by_paper(y: Tensor, gain: Tensor | None, bias: Tensor | None, how: How, layout: Layout) -> Tensor:
    """Codes of a batch norm's result by eq. 9 of the paper."""
    like = torch.ones(layout.shape[1], dtype=computed(y.dtype), device=y.device)
    _, _, scale, floor = _paper(gain, bias, how, like)
    offset = 2 ** (how.bits - 1) - floor
    zeros, rows = torch.zeros_like(scale), (layout.inner, 1, layout.inner)
    codes: Tensor = torch.ops.actfit.encode(layout.flat(y), zeros, scale, offset, None, *rows, how.bits)
    return codes


def _paper(gain: Tensor | None, bias: Tensor | None, how: How, ones: Tensor) -> tuple[Tensor, ...]:
    """Gain and bias in the type of `ones`, the scale from values to places, and the place of the bias."""
    gain = ones if gain is None else gain.to(ones.dtype)
    bias = torch.zeros_like(ones) if bias is None else bias.to(ones.dtype)
    scale = 2**how.bits / (6 * gain)
    return gain, bias, scale, torch.floor(bias * scale)


def marked(a: Tensor, y: Tensor) -> Tensor:
    """The normalised input, whose lowest bit tells whether the norm's result is above 0, as `rectify` has it."""
    bits = a.view(_INTEGERS[a.dtype])
    return torch.where(y <= 0, bits & ~1, bits | 1).view(a.dtype)


def restored(form: Form, kept: Kept, *, normal: bool = False) -> Tensor:
    """The tensor, approximately; or, where a norm gave it, that norm's normalised input."""
    if form.how.scheme == "fused":
        return _whole(form, kept, normal)
    wide, count = computed(form.dtype), prod(form.layout.shape)
    gain, bias = (None if one is None or normal else one.flatten() for one in (kept.gain, kept.bias))
    rows = form.inner, 1, form.inner
    if kept.least is not None and kept.step is not None:
        step, base, rows = kept.step, kept.least, form.layout.group
    elif form.how.scheme == "paper":
        step, base = _paper_steps(form, kept, normal)
        gain, bias = None, None
    else:
        width = 2 * form.how.reach / 2**form.how.bits / form.how.shrinkage
        step = torch.full((1,), width, dtype=wide, device=kept.codes.device)
        base = step * (0.5 - 2 ** (form.how.bits - 1))
    signs, slope = (None, 0.0) if normal or form.slope is None else (kept.signs, form.slope)
    clamp = form.how.rounding == "nearest"
    half = form.dtype == torch.float16
    dtype = wide if half else form.dtype
    signed = gain, bias, form.inner, signs, slope, clamp
    flat = torch.ops.actfit.decode(kept.codes, step, base, *rows, *signed, count, dtype)
    if half:  # the last step may reach further than there are numbers
        most = torch.finfo(torch.float16).max
        flat = flat.clamp_(-most, most).to(torch.float16)
    values = form.layout.whole(flat)
    if form.how.scheme == "paper" and form.slope is not None and not normal:  # codes tell the sign
        return F.leaky_relu(values, form.slope) if form.slope else F.relu(values)
    return values


def above(form: Form, kept: Kept) -> Tensor:
    """Bool: where a norm's result is above 0, by a scheme that keeps no plane for it."""
    if form.how.scheme == "fused":
        return (kept.codes.view(_INTEGERS[form.dtype]) & 1).bool()
    return restored(replace(form, slope=None), kept) > 0


def _paper_steps(form: Form, kept: Kept, normal: bool) -> tuple[Tensor, Tensor]:
    """Eq. 10: of channels."""
    like = torch.ones(form.layout.shape[1], dtype=computed(form.dtype), device=kept.codes.device)
    gain, bias, scale, floor = _paper(kept.gain, kept.bias, form.how, like)
    places = 0.5 - 2 ** (form.how.bits - 1) + floor
    if not normal:
        return 1 / scale, places / scale
    width = 6 / 2**form.how.bits
    return torch.full_like(scale, width), places * width - bias / gain


def _whole(form: Form, kept: Kept, normal: bool) -> Tensor:
    """Of a tensor that is kept itself."""
    if not form.normed or normal:
        return kept.codes
    flat = form.layout.flat(kept.codes)
    values = flat.to(computed(form.dtype))
    for vector, combine in ((kept.gain, torch.mul), (kept.bias, torch.add)):
        if vector is not None:
            rows = vector.flatten().to(values.dtype)[:, None]
            values = combine(values.reshape(-1, len(rows), form.inner), rows)
    whole = form.layout.whole(values.to(form.dtype).view(flat.shape))
    if form.slope is None:
        return whole
    return torch.where(above(form, kept), whole.clamp(min=0), form.slope * whole.clamp(max=0))
