"""Bytes, errors and times of approximate backprop: `python -m benchmarks.approx_backprop`."""
