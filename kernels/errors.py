"""The one exception that says "the argument is wrong"."""


class KernelError(ValueError):
    """A bad argument, or what cannot be done with it, in one line: argument, rule, value got, way out."""
