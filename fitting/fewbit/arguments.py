"""Checks of a fit's arguments that need its activation and its weight."""

from actfit.fitting.activations import Activation, check_activation
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.rules import check_bits, check_domain, check_levels
from actfit.fitting.weights import Weight

FARTHEST = 1e100


def check_arguments(
    activation: Activation, bits: int, levels: str, weight: Weight, domain: tuple[float, float] | None
) -> tuple[float, float]:
    """The domain to use: by default the weight's own.

    Raises `InputError` for the first argument that breaks its rule.
    """
    check_activation(activation)
    check_bits(bits)
    check_levels(levels)
    lo, hi = map(float, weight.domain if domain is None else domain)
    if domain is None and weight.samples is not None and max(-lo, hi) > FARTHEST:
        raise InputError(
            f"the samples reach {max(lo, hi, key=abs):g}, and squares overflow beyond {FARTHEST:g}: give --domain"
        )
    if levels == "even" and domain is None:
        lo, hi = -max(abs(lo), abs(hi)), max(abs(lo), abs(hi))
    check_domain(lo, hi)
    if max(-lo, hi) > FARTHEST:
        raise InputError(
            f"domain must lie within {-FARTHEST:g} {FARTHEST:g}, where squares do not overflow, got {lo:g} {hi:g}"
        )
    if levels == "even" and activation.parity != "even":
        raise InputError(f"levels even needs an even f', and that of {activation.name} is not; try --levels shared")
    if levels == "even" and lo != -hi:
        raise InputError(
            f"levels even needs a domain symmetric about 0, got {lo:g} {hi:g}; try --domain {-hi:g} {hi:g}"
        )
    return lo, hi
