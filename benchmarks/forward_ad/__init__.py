"""What nested forward AD saves for backward and how long it takes: `python -m benchmarks.forward_ad`."""
