"""Gradient errors of few-bit tables fitted to a network's recorded inputs, and of the usual tables."""

# Batches whose gradients are compared. Here, as reports must work without the study's packages.
JUDGED = 8
