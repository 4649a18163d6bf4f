"""Times of the kernels: `python -m benchmarks.kernels`."""
