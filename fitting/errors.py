"""The exception for bad input, and how its message is made."""

import difflib
from collections.abc import Iterable

from actfit.coefficients.command import LONGEST, shortened

__all__ = ["LONGEST", "InputError", "nearest", "shortened"]

LONGEST_NAME = 64  # characters of a name that are compared with known names


class InputError(ValueError):
    """A bad argument. Its message is one line of at most `LONGEST` characters: argument, rule, value got, remedy.

    Commands print it and exit with status 2. They catch no other exception, so a bug still shows its traceback.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(message))


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: «did you mean» the closest known names, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(name[:LONGEST_NAME].lower(), known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
