"""Symbolic regression: two engines that search for formulas in processes of their own, and what they share."""
