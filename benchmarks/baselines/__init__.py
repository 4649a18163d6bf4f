"""The rivals, each in one place: what tests and benchmarks compare ours with."""
