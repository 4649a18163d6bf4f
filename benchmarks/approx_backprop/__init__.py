"""What copies of a few bits save, change and cost: `python -m benchmarks.approx_backprop`."""
