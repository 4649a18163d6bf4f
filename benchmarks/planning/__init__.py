"""Plans for a memory budget beside uniform bits, GACT's rule and checkpoints: `python -m benchmarks.planning`."""
