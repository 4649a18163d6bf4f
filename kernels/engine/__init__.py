"""What runs: one set of ops for all methods, by Triton kernels (`launch`, `templates`) or PyTorch (`reference`)."""
