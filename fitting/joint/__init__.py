"""Joint codes: one code for both f'(x) and f(x)."""
