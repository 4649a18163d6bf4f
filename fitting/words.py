"""Numbers as reports print them."""

from decimal import ROUND_CEILING, Context


def counted(number: int, noun: str) -> str:
    """1 level, 2 levels."""
    return f"{number} {noun}{'s' * (number != 1)}"


def ten_digits(value: float) -> str:
    """Ten significant digits, without trailing zeros."""
    return f"{value:.10g}"


def percent(share: float) -> str:
    """A share as a percentage of two digits."""
    return f"{float(f'{100 * share:.2g}'):g} %"


def upwards(value: float, digits: int = 2) -> str:
    """The value rounded up to so many digits: a printed bound must hold."""
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(value)):.{digits}g}"
