"""The one exception that says "the input is wrong"."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A bad argument, told in one line: argument, rule, value got, way out.

    Command lines print it and exit with code 2; nothing else is caught there, so a bug
    still shows its traceback.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """A «did you mean» tail for an unknown `name`: the closest known ones, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
