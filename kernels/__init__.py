"""Activation functions that remember less: functional forms, modules, and the Triton kernels behind them."""
