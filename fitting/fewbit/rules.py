"""Checks of a fit's arguments, for `solve.fit`, and for the command before it imports its libraries."""

import math
from numbers import Integral

from actfit.fitting.errors import InputError

KINDS = ("best", "shared", "contiguous", "even")
MAX_BITS = 8


def check_bits(bits: int) -> None:
    """Raise `InputError` unless `bits` is a whole number (of Python or NumPy) from 1 to `MAX_BITS`."""
    if isinstance(bits, bool) or not isinstance(bits, Integral) or not 1 <= bits <= MAX_BITS:
        raise InputError(f"bits must be a whole number from 1 to {MAX_BITS}, got {bits}")


def check_levels(levels: str) -> None:
    """Raise `InputError` unless `levels` is one of `KINDS`."""
    if levels not in KINDS:
        raise InputError(f"levels must be one of {', '.join(KINDS)}, got {levels!r}")


def check_budget(seconds: float) -> None:
    """Raise `InputError` unless `seconds` is positive and finite."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"budget must be a positive number of seconds, got {seconds:g}")


def check_max_error(limit: float) -> None:
    """Raise `InputError` unless `limit` is finite and at least 0."""
    if not (math.isfinite(limit) and limit >= 0):
        raise InputError(f"max-error must be finite and at least 0, got {limit}")


def check_domain(lo: float, hi: float) -> None:
    """Raise `InputError` unless `lo` and `hi` are finite and in this order."""
    if not (math.isfinite(lo) and math.isfinite(hi) and lo < hi):
        raise InputError(f"domain must be two finite numbers, the lower first, got {lo:g} {hi:g}")
