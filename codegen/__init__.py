"""Triton kernels, and their plain-PyTorch twins, from symbolic expressions and from users' functions."""
