"""Notebooks about the fits, and the pages made of them."""
