"""The values printed in Table 1 of the FewBit paper (Novikov et al., ICML 2023), to compare with."""

# ∫ (f' - q)² dx on [-10, 10]. Sigmoid and tanh are fitted on |x| there, the others in contiguous intervals.
TABLE_1: dict[str, tuple[str, ...]] = {
    "gelu": ("0.1410", "0.0406", "0.0119", "0.0031"),
    "silu": ("0.2150", "0.0479", "0.0170", "0.0045"),
    "sigmoid": ("0.0181", "0.0038", "0.0009", "0.0002"),
    "tanh": ("0.1584", "0.0319", "0.0073", "0.0017"),
    "selu": ("0.2554", "0.1010", "0.0184", "0.0039"),
    "softplus": ("0.2902", "0.0541", "0.0121", "0.0029"),
    "relu": ("0.0",),
}
EVEN = ("sigmoid", "tanh")


def printed(function: str, bits: int) -> str | None:
    """The paper's value for default parameters and uniform weight, as printed; None if the table has none."""
    values = TABLE_1.get(function, ())
    return values[bits - 1] if bits <= len(values) else None
