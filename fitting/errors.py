"""The one exception that says "the input is wrong"."""

import difflib
from collections.abc import Iterable

LONGEST = 600
LONGEST_NAME = 64  # that is compared with known ones


class InputError(ValueError):
    """A bad argument, told in one line of at most `LONGEST` characters: argument, rule, value got, way out.

    Command lines print it and exit with code 2; nothing else is caught there, so a bug
    still shows its traceback.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(message, LONGEST))


def shortened(text: str, longest: int) -> str:
    """The text, or its two ends where it is longer than that: what is echoed of an input may be all of a file."""
    half = (longest - 5) // 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A «did you mean» tail for an unknown `name`: the closest known ones, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(name[:LONGEST_NAME].lower(), known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
