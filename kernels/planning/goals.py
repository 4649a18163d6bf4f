"""What a plan makes least, within its budget."""

from typing import Literal, get_args

Goal = Literal["error", "time"]  # of the gradient; or of a step, by as few elements in codes as possible
GOALS: tuple[Goal, ...] = get_args(Goal)
