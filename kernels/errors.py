"""The exception for invalid arguments."""


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
