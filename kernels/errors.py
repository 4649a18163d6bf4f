"""The one exception that says "the argument is wrong"."""


class KernelError(ValueError):
    """A bad argument, or what cannot be done with it, in one line: argument, rule, value got, way out."""


def shown(value: object) -> str:
    """The value in a message's line: what it is instead, where it is long or has lines of its own."""
    if isinstance(value, int) and value.bit_length() > 64:  # Python writes none of more than 4300 digits
        return f"a whole number of {value.bit_length()} bits"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"a {type(value).__name__} of {value.dtype}, of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"a {type(value).__name__} of {len(text)} characters"
