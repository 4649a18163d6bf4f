"""Codes in operations that Inductor looks into: it encodes and decodes in loops of its own, with what is around them.

A byte holds a code of 8 bits, or two of 4: of an element of the first half of its group, and of the second half's. So
a loop over the bytes of a group reads neighbours, and finds both its ends and its codes.
"""

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor, fx

from actfit.kernels import private
from actfit.kernels.compression.forms import FixedRange, Groups
from actfit.kernels.compression.layout import DEFAULT_GROUP, hint
from actfit.kernels.engine.codes import narrowed
from actfit.kernels.engine.reference_codes import range_of
from actfit.kernels.graph.codes import flat_of, shaped


def is_plain(value: Tensor, form: Groups) -> bool:
    """Whether plain operations make and read its codes: of whole groups, 8 bits, or 4 in groups of the usual size.

    On a CPU, loops over halves of other groups take no vectors.
    """
    fits = form.bits == 8 or (form.bits == 4 and form.layout.group == DEFAULT_GROUP)
    is_known = not isinstance(form, FixedRange) and value.dtype != torch.float64
    return fits and is_known and hint(value.numel()) % form.layout.group == 0


def encoded(x: Tensor, form: Groups) -> list[Tensor]:
    """Codes, uint8 [elements * bits / 8]; minima and scales, bfloat16 [groups], as `encode` rounds them."""
    order, group = form.layout
    halves = flat_of(x, order).view(-1, 8 // form.bits, group * form.bits // 8)
    parts = [halves.select(1, part).float() for part in range(halves.shape[1])]
    parts = [part.sqrt() for part in parts] if form.of_roots else parts
    low, high = reduce(torch.minimum, parts).amin(1, True), reduce(torch.maximum, parts).amax(1, True)
    minimum, scale = range_of(low, high, form.bits)
    inverse, most = 1 / scale, (1 << form.bits) - 1
    codes = [((part - minimum) * inverse + 0.5).clamp(0, most).to(torch.uint8) for part in parts]
    held = reduce(lambda first, second: first | second << form.bits, codes)
    return [held.reshape(-1), *(end.reshape(-1).bfloat16() for end in (minimum, scale))]


def decoded(codes: Tensor, minimum: Tensor, scale: Tensor, value: Tensor, form: Groups) -> Tensor:
    """A tensor with the sizes, strides and dtype of `value`, from what `encoded` gives."""
    order, group = form.layout
    parts = 8 // form.bits
    held = codes.view(-1, 1, group // parts)
    if parts > 1:
        shifts = form.bits * torch.arange(parts, dtype=torch.uint8, device=codes.device)
        held = held >> shifts.view(1, parts, 1) & (1 << form.bits) - 1
    step, least = (end.float().view(-1, 1, 1) for end in (scale, minimum))
    numbers = held.float() * step + least
    if form.of_roots:
        numbers = numbers * numbers
    return shaped(narrowed(numbers, value.dtype).view(-1), value.shape, order)


def traced(function: Callable[..., object], nodes: list[fx.Node], before: fx.Node) -> list[fx.Node]:
    """The operations of a function of the nodes' tensors, before another node; its results."""
    given = [node.meta["val"] for node in nodes]
    with private.detect_fake_mode(given):
        graph = private.make_fx(function, private.select_decomp_table())(*given).graph
    with before.graph.inserting_before(before):
        made = before.graph.graph_copy(graph, dict(zip(graph.find_nodes(op="placeholder"), nodes, strict=True)))
    return made if isinstance(made, list) else [made]
