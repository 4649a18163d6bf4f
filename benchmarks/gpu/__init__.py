"""All that is measured on a GPU, in one command: `python -m benchmarks.gpu`, or `make gpu`."""
