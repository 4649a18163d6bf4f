"""Nested forward AD: chains of element-wise operations that a user wrote keep one tensor for backward, f'(x)."""

from kernels.forward_ad.eager import nested_forward_ad
from kernels.forward_ad.wrapping import unwrap, wrap

__all__ = ["nested_forward_ad", "unwrap", "wrap"]
