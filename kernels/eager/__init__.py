"""The method compress: few bits for every tensor that autograd saves, in eager mode."""

from kernels.eager.forward import InFewBits, InFewBitsApart, Recomputed, Untouched
from kernels.eager.mode import Compressing
from kernels.eager.watch import Watch
from kernels.eager.whole import WholeTensor, watching

__all__ = ["Compressing", "InFewBits", "InFewBitsApart", "Recomputed", "Untouched", "Watch", "WholeTensor", "watching"]
