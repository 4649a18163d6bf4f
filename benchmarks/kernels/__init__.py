"""Time and memory of the kernels: `python -m benchmarks.kernels`."""
