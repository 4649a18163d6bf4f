"""The rivals, each in one place: what tests and benchmarks hold ours against."""
