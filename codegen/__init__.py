"""Triton kernels, and their plain-PyTorch twins, from symbolic expressions and from users' functions."""

from typing import TYPE_CHECKING

from coefficients.lazy import lazily

if TYPE_CHECKING:
    from codegen.runtime import elementwise

__all__ = ["elementwise"]
_NEEDS = "elementwise needs PyTorch, which is not installed; pip install torch triton"

if not TYPE_CHECKING:  # commands need no torch
    __getattr__, __dir__ = lazily(__name__, {"runtime": __all__}, torch=_NEEDS)
