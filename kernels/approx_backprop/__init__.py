"""Backprop with approximate activations: an exact forward, K-bit copies for backward."""
