"""The check of λ, for `solve.fit_joint`, and for the command before it imports its libraries."""

from actfit.fitting.errors import InputError

LEAST, LARGEST = 1e-12, 1e12  # beyond these, one of the two errors is below the other's rounding


def check_output_weight(output_weight: float) -> None:
    """Raise `InputError` unless λ is a number from `LEAST` to `LARGEST`."""
    if not LEAST <= output_weight <= LARGEST:
        raise InputError(f"lambda must be from {LEAST:g} to {LARGEST:g}, got {output_weight:g}; 1 counts both alike")
