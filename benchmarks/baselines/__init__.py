"""The rivals that tests and benchmarks compare our methods with."""
