"""python-flint, whose balls are rigorous; where it is not installed, what says so when it is used.

So the catalogue and codegen can be imported without it, and what needs no ball runs.
"""

from typing import Any

from fitting.errors import InputError


class Absent:
    """Stands for python-flint where it is not installed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own questions
            raise AttributeError(name)
        raise InputError("python-flint must be installed for ball arithmetic, got none; pip install python-flint")


flint: Any
try:
    import flint
except ModuleNotFoundError:
    flint = Absent()
