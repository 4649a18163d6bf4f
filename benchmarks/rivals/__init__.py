"""Blocks of a transformer by every rival, side by side: `python -m benchmarks.rivals`."""
