"""GACT's rule (Liu et al. 2022) for the bits of each saved tensor: one measurement of each, and greedy narrowing.

A tensor's sensitivity is the distance of two gradients that differ only in the random roundings of its codes. b bits
are assumed to have the variance c / 4^b. All tensors start with the widest codes; the one that adds least variance for
each byte saved is narrowed, until the bytes fit.

The authors measure at 1 bit; we measure at the fewest bits of our codes, so c is extrapolated less far. Bytes are those
of our codes. Left out: measuring again every so many steps, and GACT's third gradient, with 8 bits in the tensor, which
guards against codes that are not random.
"""

from collections.abc import Callable, Mapping, Sequence

Variance = Callable[[Mapping[str, int]], float]


def sensitivities(variance: Variance, sites: Sequence[str], bits: int) -> dict[str, float]:
    """The constant c of each site.

    Parameters
    ----------
    variance
        The gradient's variance by two random roundings; sites that are not in the mapping have no codes.
    sites
        Names of saved tensors.
    bits
        The width at which variances are measured.
    """
    return {site: variance({site: bits}) * 4.0**bits for site in sites}


def allocate(
    sensitivity_of: Mapping[str, float],
    widths: Sequence[int],
    bytes_of: Callable[[str, int], int],
    fits: Callable[[Mapping[str, int]], bool],
) -> dict[str, int]:
    """Bits by site.

    Parameters
    ----------
    sensitivity_of
        c of each site.
    widths
        The possible bits, in ascending order.
    bytes_of
        Bytes of a site's codes with so many bits.
    fits
        Whether the codes of these bits are small enough.

    Raises
    ------
    ValueError
        If not even the fewest bits fit.
    """
    bits = dict.fromkeys(sensitivity_of, widths[-1])
    while not fits(bits):
        losses = {site: _loss(sensitivity_of[site], widths, bits[site], site, bytes_of) for site in bits}
        narrowed = min(losses, key=losses.__getitem__)
        if losses[narrowed] == float("inf"):
            raise ValueError(f"bytes must be enough for {widths[0]} bits everywhere, got fewer; take a larger budget")
        bits[narrowed] = widths[widths.index(bits[narrowed]) - 1]
    return bits


def _loss(c: float, widths: Sequence[int], bits: int, site: str, bytes_of: Callable[[str, int], int]) -> float:
    """The variance that saving a byte adds."""
    place = widths.index(bits)
    if place == 0:
        return float("inf")
    less = widths[place - 1]
    return c * (4.0**-less - 4.0**-bits) / (bytes_of(site, bits) - bytes_of(site, less))
