"""Bytes and times of nested forward AD: `python -m benchmarks.forward_ad`."""
