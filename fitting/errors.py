"""The exception for bad input, and how its message is made."""

import difflib
from collections.abc import Iterable

from actfit.coefficients.command import LONGEST, shortened
from actfit.coefficients.functions import ALIASES, names

__all__ = ["LONGEST", "InputError", "check_name", "nearest", "shortened"]

LONGEST_NAME = 64  # characters of a name that are compared with known names


class InputError(ValueError):
    """A bad argument. Its message is one line of at most `LONGEST` characters: argument, rule, value got, remedy.

    Commands print it and exit with status 2. They catch no other exception, so a bug still shows its traceback.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(message))


def check_name(name: str) -> None:
    """Raise `InputError` unless a function of the catalogue has this name."""
    if name not in (known := (*names(), *ALIASES)):
        is_word = name.replace("_", "").isalnum() or not name
        hint = nearest(name, known) if is_word else "an expression goes to --expr"
        raise InputError(f"unknown function {name!r}; {hint}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: «did you mean» the closest known names, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(name[:LONGEST_NAME].lower(), known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
