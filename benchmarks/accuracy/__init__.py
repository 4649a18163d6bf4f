"""Every function by every method over all 16-bit numbers: `python -m benchmarks.accuracy`."""
