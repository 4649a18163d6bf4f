"""Few bits for every tensor that autograd saves, in eager mode."""

from kernels.eager.forward import InFewBits, Untouched
from kernels.eager.mode import Compressing
from kernels.eager.watched import Whole, watching

__all__ = ["Compressing", "InFewBits", "Untouched", "Whole", "watching"]
