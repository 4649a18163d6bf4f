"""The formulas of a choice as lines of text: s, q and their constants."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np

from fitting.invact.candidate import Candidate
from fitting.invact.form import Y
from fitting.invact.solve import Fit
from fitting.invact.text import spell

WIDTH = 108
COLUMNS = 3  # of constants


def names(fit: Fit) -> tuple[str, ...]:
    """What the branches are called."""
    return ("left", "right") if len(fit.floor.split.sides) == 2 else ("all",)


def blocks(fit: Fit) -> list[list[str]]:
    """For each branch its formulas and constants; what both share is said once."""
    texts = [spelled(candidate) for candidate in fit.chosen.candidates]
    numbers = [constants(candidate) for candidate in fit.chosen.candidates]
    shared = len(texts) == 2 and texts[0][-1] == texts[1][-1] and numbers[0] == numbers[1]
    if not shared:
        return [_block(*one) for one in zip(names(fit), texts, numbers, strict=True)]
    if texts[0] == texts[1]:
        return [_block("both", texts[0], numbers[0])]
    apart = [_block(name, text[:-1], {}) for name, text in zip(names(fit), texts, strict=True)]
    return [[*apart[0], *apart[1], *_block("both", texts[0][-1:], numbers[0])]]


def spelled(candidate: Candidate) -> list[str]:
    """s = ... where the formula has one of its own, and q = ..."""
    s = candidate.variable.symbolic
    return [*([] if s == Y else [f"s = {spell(s)}"]), f"q = {spell(candidate.form.expression)}"]


def constants(candidate: Candidate) -> dict[str, float]:
    """Those of s, then those of q."""
    own = {} if candidate.variable.symbolic == Y else candidate.variable.constants
    return {**own, **{c.name: value for c, value in zip(candidate.form.constants, candidate.form.values, strict=True)}}


def shortest(value: float) -> str:
    """The fewest digits that mean the number: of a float32 where it is one."""
    short = np.float32(value)
    return str(short) if float(short) == value else repr(value)


def _block(name: str, texts: Sequence[str], numbers: Mapping[str, float]) -> list[str]:
    lines = [line for i, text in enumerate(texts) for line in _wrapped(f"{'' if i else name:8}{text}")]
    return [*lines, *_listed([(key, shortest(value)) for key, value in numbers.items()])]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False)


def _listed(items: Sequence[tuple[str, str]]) -> list[str]:
    """name = value, to be read down the columns."""
    height = -(-len(items) // COLUMNS) or 1
    columns = []
    for at in range(0, len(items), height):
        part = items[at : at + height]
        width = max(len(key) for key, _ in part)
        cells = [f"{key:{width}} = {'' if value.startswith('-') else ' '}{value}" for key, value in part]
        longest = max(map(len, cells))
        columns.append([cell.ljust(longest) for cell in cells] + [""] * (height - len(cells)))
    return [("          " + "    ".join(row)).rstrip() for row in zip(*columns, strict=True)]
