"""Backprop with approximate activations: layers run forward exactly and save K-bit copies for backward.

Chakrabarti and Moseley, Backprop with Approximate Activations for Memory-efficient Network Training (2019).
"""

from kernels.approx_backprop.modules import NormLinear, PreActivation, QLinear
from kernels.approx_backprop.pooling import avg_pool2d
from kernels.methods.compressed import Compressed

__all__ = ["Compressed", "NormLinear", "PreActivation", "QLinear", "avg_pool2d"]
