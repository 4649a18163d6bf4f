"""Error against bytes of compress, beside the generic saved-tensors hook: `python -m benchmarks.fronts`."""
