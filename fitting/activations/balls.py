"""python-flint, for rigorous ball arithmetic; without it, a stand-in that raises `InputError` when it is used.

So the catalogue and codegen can be imported, and run where they need no balls, without it.
"""

import math
from typing import Any

from actfit.fitting.errors import InputError


class Absent:
    """Stands for python-flint where it is not installed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python itself asks for these
            raise AttributeError(name)
        raise InputError("python-flint must be installed for ball arithmetic, got none; pip install python-flint")


flint: Any
try:
    import flint
except ModuleNotFoundError:
    flint = Absent()


def below(ball: Any) -> float:
    """A float64 number below all of a real ball."""
    return math.nextafter(float(ball.lower()), -math.inf)


def above(ball: Any) -> float:
    """A float64 number above all of a real ball."""
    return math.nextafter(float(ball.upper()), math.inf)
