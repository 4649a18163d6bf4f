"""Numbers as people read them."""

from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

UP, DOWN, NEAREST = ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN  # for "at most", "at least", and other numbers
NBSP = "\N{NO-BREAK SPACE}"
MUCH = 10  # larger shares are not printed exactly
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def short(value: float | Decimal | None, digits: int = 3, rounding: str = NEAREST) -> str:
    """A number to a few digits, with a true minus sign and powers of ten: 4.6×10⁻⁷. None is a dash."""
    if value is None:
        return "–"
    mantissa, _, exponent = f"{float(_rounded(value, digits, rounding)):.{digits}g}".partition("e")
    mantissa = mantissa.replace("-", "−")
    if not exponent:
        return mantissa
    power = "10" + str(int(exponent)).translate(_RAISED)
    return power if mantissa == "1" else f"{mantissa}×{power}"


def percent(share: float, rounding: str = NEAREST) -> str:
    """A share as a percentage, with two digits below 100 %."""
    if share > MUCH:
        return f"> {100 * MUCH}{NBSP}%"
    hundredths = 100 * _rounded(share, 2 if share < 1 else 3, rounding)
    return f"{hundredths:.0f}{NBSP}%" if hundredths >= 100 else f"{short(hundredths, 2)}{NBSP}%"


def _rounded(value: float | Decimal, digits: int, rounding: str) -> Decimal:
    return Context(digits, rounding).create_decimal(value)
