"""Plans for a budget of memory: how many bits each saved tensor of a model gets."""

from typing import TYPE_CHECKING

from coefficients.lazy import lazily

if TYPE_CHECKING:
    from kernels.planning.fronts import Front, front
    from kernels.planning.make import make_plan
    from kernels.planning.plan import Plan

__all__ = ["Front", "Plan", "front", "make_plan"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, {"make": ("make_plan",), "plan": ("Plan",), "fronts": ("Front", "front")})
