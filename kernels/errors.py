"""The exception for invalid arguments, and warnings."""

import sys
import warnings

LIBRARIES = ("actfit", "torch", "transformers", "accelerate", "lightning")


class KernelError(ValueError):
    """An invalid or unsupported argument, in one line: the argument, the rule, the value given, and what to do."""


def shown(value: object) -> str:
    """The value for a one-line message; a description instead if it is long or has several lines."""
    if isinstance(value, int) and value.bit_length() > 64:  # Python refuses to write more than 4300 digits
        return f"a whole number of {value.bit_length()} bits"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"a {type(value).__name__} of {value.dtype}, of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"a {type(value).__name__} of {len(text)} characters"


def warn(text: str) -> None:
    """Warn, of the line of the user's own code that leads here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
