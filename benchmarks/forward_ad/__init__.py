"""What nested forward AD keeps and how long it takes: `python -m benchmarks.forward_ad`."""
