"""Numbers as people read them."""

NBSP = "\N{NO-BREAK SPACE}"
MUCH = 10  # of a share, above which its size tells nothing
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def short(value: float | None, digits: int = 3) -> str:
    """A number to a few digits, with a true minus sign and powers of ten: 4.6×10⁻⁷. None is a dash."""
    if value is None:
        return "–"
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    mantissa = mantissa.replace("-", "−")
    if not exponent:
        return mantissa
    power = "10" + str(int(exponent)).translate(_RAISED)
    return power if mantissa == "1" else f"{mantissa}×{power}"


def percent(share: float) -> str:
    """A share as a percentage, of two digits below 100."""
    if share > MUCH:
        return f"> {100 * MUCH}{NBSP}%"
    return f"{100 * share:.0f}{NBSP}%" if share >= 1 else f"{short(100 * share, 2)}{NBSP}%"


def count(number: int, noun: str) -> str:
    """1 level, 2 levels."""
    return f"{number} {noun}{'s' * (number != 1)}"
