"""Plans for a budget of memory, beside uniform bits, GACT's rule and computing again."""
