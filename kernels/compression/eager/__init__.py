"""Few bits for whatever autograd saves, without a compiler."""

from kernels.compression.eager.mode import Compressing

__all__ = ["Compressing"]
