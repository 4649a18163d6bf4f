"""When a fit is good enough for a dtype."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fitting.errors import InputError
from fitting.invact.floor import Floor
from fitting.invact.judge import Score

RMS_SHARE, LINF_SHARE = 0.02, 0.10  # by which the total error may exceed the floor
RELAXED = f"RMS within {RMS_SHARE:.0%}, largest error within {LINF_SHARE:.0%} of what is possible; the floor is not"
FLOAT32 = 2.0**-20  # the largest error for float32, times the power of two at or below max |g|


@dataclass(frozen=True)
class Rule:
    """What a fit must reach, infinite where it does not matter.

    `square`: the mean square beside the floor's; `linf` and `pointwise` as in `Score`.
    """

    text: str
    square: float = math.inf
    linf: float = math.inf
    pointwise: float = math.inf

    @property
    def by_rms(self) -> bool:
        """Whether the mean square is what counts first."""
        return math.isfinite(self.square)

    def fits(self, scores: Iterable[Score]) -> bool:
        """Whether these scores of all sides together are good enough."""
        scores = list(scores)
        return (
            sum(score.square for score in scores) <= self.square
            and max(score.linf for score in scores) <= self.linf
            and max(score.pointwise for score in scores) <= self.pointwise
        )


def relaxed(floor: Floor, of_g: Sequence[Score], found: Sequence[Sequence[Score]]) -> Rule:
    """For a floor that no smooth function reaches: the shares are taken of the least error found, or of g's own.

    So it is with tanhshrink in bfloat16, where hardly two x share a y: a table of all y would know each x, g does not.
    """
    added = min(sum(score.square for score in scores) for scores in (of_g, *found))
    least = min((max(score.linf for score in scores) for scores in found), default=0.0)
    largest = max(least, *(score.linf for score in of_g))
    return Rule(
        RELAXED,
        square=(1.0 + RMS_SHARE) ** 2 * (floor.rms**2 + added) - floor.rms**2,
        linf=(1.0 + LINF_SHARE) * largest,
    )


def rule_for(floor: Floor, max_error: float | None = None) -> Rule:
    """The rule of the floor's dtype, or `max_error` as the largest error at outputs that are stored.

    Where rounding f' itself to the dtype costs more than the floor, that is what the shares are taken of. Raises
    `InputError` for a `max_error` that float32 cannot tell from 0.
    """
    largest = max(float(abs(cells.middle).max()) for cells in floor.cells)
    if max_error is not None:
        if max_error < (least := largest * 2.0**-24):
            raise InputError(f"max-error must be at least {least!r}, where float32 rounds, got {max_error:g}")
        return Rule(f"max |q - g| at most {max_error:g}", pointwise=max_error)
    if floor.format.precision > 16:
        most = FLOAT32 * 2.0 ** math.floor(math.log2(largest)) if largest > 0 else FLOAT32
        return Rule(f"max |q - g| at most {most:.3g} in float32", pointwise=most)
    rms, linf = max(floor.rms, floor.rounding_rms), max(floor.linf, floor.rounding_linf)
    of_what = "the floor" if (rms, linf) == (floor.rms, floor.linf) else "the floor or of what rounding f' costs"
    return Rule(
        f"RMS within {RMS_SHARE:.0%}, largest error within {LINF_SHARE:.0%} of {of_what}",
        square=((1.0 + RMS_SHARE) ** 2 - 1.0) * rms**2,
        linf=floor.linf + LINF_SHARE * linf,
    )
