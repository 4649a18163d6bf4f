"""A budget of memory in, a plan out: how many bits each saved tensor of a model gets."""

from kernels.planning.make import make_plan
from kernels.planning.plan import Plan

__all__ = ["Plan", "make_plan"]
