"""Codes of an activation and the layer after it, side by side: `python -m benchmarks.activation_codes`."""
