"""Watches the errors of decoded tensors while a model trains by a plan: one tensor in each forward pass, in turn.

In forward the exact tensor is there, so this takes next to no time, and the memory of a piece.
"""

import warnings
from collections.abc import Callable, Mapping
from math import lcm

import torch
from torch import Tensor

from kernels import private
from kernels.eager.encoded import Groups
from kernels.eager.tensors import relative_error

TIMES = 2  # the planned error, above which a plan is no longer of this model
PIECE, PIECES = 1 << 16, 8  # elements of a piece, nearly, and how many pieces of a tensor are read
STACK_LEVEL = 2


class Watch:
    """The relative errors of decoded tensors, by site, when each was seen last.

    Attributes
    ----------
    planned
        The errors that the plan goes by.
    seen
        ||x' - x|| / ||x|| of up to 8 pieces of the tensor.
    """

    def __init__(self, planned: Mapping[str, float]) -> None:
        self.planned, self.seen = dict(planned), dict[str, float]()
        self._turn, self._had_turn, self._warned = 0, True, False

    def next_pass(self) -> Callable[[str, Tensor, Groups], None]:
        """A function that is called with the site, the flat tensor and the code of each tensor of a forward pass."""
        self._turn = self._turn + 1 if self._had_turn else 1  # after the last tensor comes the first
        self._had_turn, left = False, self._turn

        def look(site: str, x: Tensor, code: Groups) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._had_turn = True
                self._see(site, x, code)

        return look

    def _see(self, site: str, x: Tensor, code: Groups) -> None:
        if private.is_fake(x) or x.is_meta or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            return  # it has no numbers, or they must not be waited for
        error = _error(x, code)
        self.seen[site] = error
        allowed = TIMES * self.planned.get(site, float("inf"))
        if error > allowed and not self._warned:
            self._warned = True
            warnings.warn(
                f"decoded tensors must err by at most {TIMES} times what is planned, {allowed / TIMES:.2g}, got"
                f" {error:.2g} at {site!r}: its numbers are others than when the plan was made; plan again, by"
                " convert(model, inputs=..., budget=...) after report.revert()",
                stacklevel=STACK_LEVEL,
            )


def _error(x: Tensor, code: Groups) -> float:
    """The relative error of pieces that lie all over the tensor."""
    unit = lcm(code.group, 8)
    length = max(PIECE // unit, 1) * unit
    last = max(x.numel() - 1, 0) // length
    squares = []
    for number in sorted({last * part // (PIECES - 1) for part in range(PIECES)}):
        place = slice(number * length, min((number + 1) * length, x.numel()))
        squares.append(code.squares(code.piece(code.parts(), place), x[place]))
    return relative_error(torch.stack(squares).sum(0))
