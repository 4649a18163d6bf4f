"""Trainings with every method beside stock: `python -m benchmarks.training`."""
