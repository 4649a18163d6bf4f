"""What a plan makes least, within its budget. It imports no PyTorch: the command checks its words without."""

from typing import Literal, get_args

Goal = Literal["time", "error"]  # of a step; or of the gradient
GOALS: tuple[Goal, ...] = get_args(Goal)
