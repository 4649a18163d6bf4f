"""Few-bit tables as text: from x to its code by comparisons, from the code to its level by selections.

Few borders make a ladder of selections: a comparison and a selection each, which GPUs do at half rate. Of many, those
below x are counted: an addition takes the place of the selection, at full rate on Hopper. Codes that go up and down by
one as the count grows are the count, reflected where they turn.

For the k-th of eight elements, bit p of the code is at position 8*p + k: the sum of the eight codes is a word whose
byte p is their byte of bit plane p. Shifting a constant by k, as a ladder does, costs nothing: each register has its
own k.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from actfit.codegen.function import Function
from actfit.kernels.methods.few_bit import MAX_INLINE_BITS
from actfit.kernels.methods.table import largest_float32


def planes(solution: Mapping[str, Any]) -> int:
    """The bits that the codes need: fewer than were asked for, where f' takes fewer values."""
    return (len(solution["levels"]) - 1).bit_length()


def spread(code: int) -> str:
    """The code with bit p at position 8*p, as a number of the source."""
    return f"0x{sum(((code >> p) & 1) << (8 * p) for p in range(MAX_INLINE_BITS)):x}"


# Borders from which on they are counted: fewer would save less than the conversions to and from a count take. With 5
# to 8, of 3 bits, it lowers what the busiest unit does but for tanh and tanhshrink, which add and multiply much.
COUNTED = 5


def code_function(name: str, solution: Mapping[str, Any]) -> Function:
    """code(x): which interval x lies in; each is open below and closed above."""
    borders, codes = solution["borders"], solution["codes"]
    count = len(solution["levels"])
    mirror = _mirror(borders, codes, count) if len(borders) > 2 else None
    doc = "The code of the interval of x, bit p at 8*p + k"
    if mirror is None:
        return Function(name, ("x", "params", "k"), f"{doc}.", tuple(_of_one_side("x", borders, codes, None)))
    half = len(borders) // 2
    middle = len(borders) % 2  # 1 with a border at 0: codes left of it are the complements of those right of it
    turned = count - 1 if mirror == "complement" else None
    body = ["a = tl.abs(x)", *_of_one_side("a", borders[half + middle :], codes[half + middle :], turned)]
    doc = f"{doc}: that of |x|{', turned over where x <= 0' if turned is not None else ''}."
    return Function(name, ("x", "params", "k"), doc, tuple(body))


def _of_one_side(variable: str, borders: list[float], codes: list[int], turned: int | None) -> list[str]:
    """The code of a variable, from the borders that it may pass; turned: less the code, where x is not above 0."""
    positive = f"x > {largest_float32(0.0)!r}"
    counted = _counted(variable, borders, codes) if len(borders) >= COUNTED else None
    if counted is not None:
        if turned is not None:
            counted.append(f"c = tl.where({positive}, c, {turned + 1.0} - c)")
        # Four copies, 7 bits apart: bit p at 8p.
        return [*counted, "return ((c.to(tl.int32) * 0x204081) & 0x01010101) << k"]
    body = _ladder(variable, borders, codes)
    if turned is not None:
        body[-1] = body[-1].replace("return ", "c = ")
        body.append(f"return tl.where({positive}, c, c ^ ({spread(turned)} << k))")
    return body


def _counted(variable: str, borders: list[float], codes: list[int]) -> list[str] | None:
    """The code and a half, as the number of borders below the variable, reflected where codes turn; None if they do
    not go so. The half keeps LLVM from counting in integers, whose additions are at half rate."""
    slopes = np.diff(codes)
    falls = slopes[0] < 0
    values = codes[0] + np.arange(len(codes)) * (-1 if falls else 1)
    steps = [f"({variable} > {largest_float32(border)!r}).to(tl.float32)" for border in borders]
    lines = [f"c = {codes[0] + 0.5} {'-' if falls else '+'} {steps[0]}"]
    lines += [f"c {'-' if falls else '+'}= {step}" for step in steps[1:]]
    for place in np.flatnonzero(slopes[1:] != slopes[:-1]):
        turn = codes[place + 1]
        values = turn + abs(values - turn) * (1 if falls else -1)
        lines.append(f"c = {turn + 0.5} {'+' if falls else '-'} tl.abs(c - {turn + 0.5})")
        falls = not falls
    return lines if values.tolist() == codes else None


def _mirror(borders: list[float], codes: list[int], count: int) -> str | None:
    """How codes left of 0 follow from those right of it: "same", "complement", or None if they do not."""
    exact = [border for border in borders if border != 0 and float(np.float32(border)) == border]
    if [-border for border in borders[::-1]] != borders or exact:
        return None  # intervals are closed above: where x equals a border, |x| has another code than x
    if codes == codes[::-1]:
        return "same"
    whole = count == 1 << (count - 1).bit_length()
    return "complement" if whole and 0.0 in borders and codes == [count - 1 - code for code in codes[::-1]] else None


def _ladder(variable: str, borders: list[float], codes: list[int]) -> list[str]:
    if not borders:
        return [f"return tl.full({variable}.shape, {spread(codes[0])}, tl.int32) << k"]
    lines = []
    for i, border in enumerate(borders):
        before = "c" if i else f"{spread(codes[0])} << k"
        lines.append(f"c = tl.where({variable} > {largest_float32(border)!r}, {spread(codes[i + 1])} << k, {before})")
    lines[-1] = lines[-1].replace("c = ", "return ", 1)
    return lines


def level_function(name: str, solution: Mapping[str, Any]) -> Function:
    """level(code): a tree of selections, the lowest bit first."""
    values = [repr(float(level)) for level in solution["levels"]]
    lines: list[str] = []
    for p in range(planes(solution)):
        lines.append(f"b{p} = (code & {spread(1 << p)}) != 0")
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = []
        for i, pair in enumerate(pairs):
            if len(pair) == 1:
                values.append(pair[0])
                continue
            lines.append(f"v{p}_{i} = tl.where(b{p}, {pair[1]}, {pair[0]})")
            values.append(f"v{p}_{i}")
    if not lines:
        return Function(
            name, ("code",), "The level of a code.", (f"return tl.full(code.shape, {values[0]}, tl.float32)",)
        )
    lines[-1] = "return " + lines[-1].partition(" = ")[2]
    return Function(name, ("code",), "The level of a code.", tuple(lines))
