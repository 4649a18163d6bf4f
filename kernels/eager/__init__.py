"""Few bits for every tensor that autograd saves, in eager mode."""

from kernels.eager.forward import InFewBits, Recomputed, Untouched
from kernels.eager.mode import Compressing
from kernels.eager.watched import Whole, watching

__all__ = ["Compressing", "InFewBits", "Recomputed", "Untouched", "Whole", "watching"]
