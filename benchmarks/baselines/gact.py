"""GACT's rule (Liu et al. 2022) for the bits of each saved tensor: one measurement of each, and greedy narrowing.

A tensor's sensitivity is how far two gradients are apart which differ in the random roundings of its codes alone. The
variance of b bits is taken to be c / 4^b. From the widest codes everywhere, the tensor is narrowed by a bit that loses
least by it for each byte, until the bytes are few enough.

The authors measure at 1 bit; here it is at the fewest that our codes have, so c is extrapolated over a shorter way.
Bytes are those of our codes. Not taken from GACT: a measurement again every so many steps, and its third gradient,
with 8 bits in the tensor, which guards against codes that are not random.
"""

from collections.abc import Callable, Mapping, Sequence

Variance = Callable[[Mapping[str, int]], float]


def sensitivities(variance: Variance, sites: Sequence[str], bits: int) -> dict[str, float]:
    """c of each site.

    Parameters
    ----------
    variance
        Of the gradient by two random roundings, where sites have codes of so many bits, and the others none.
    sites
        Names of saved tensors.
    bits
        At which it is measured.
    """
    return {site: variance({site: bits}) * 4.0**bits for site in sites}


def allocate(
    found: Mapping[str, float],
    widths: Sequence[int],
    bytes_of: Callable[[str, int], int],
    fits: Callable[[Mapping[str, int]], bool],
) -> dict[str, int]:
    """Bits by site.

    Parameters
    ----------
    found
        c of each site.
    widths
        Bits that there are, from the fewest.
    bytes_of
        Of a site's codes.
    fits
        Whether these bits are few enough.

    Raises
    ------
    ValueError
        If not even the fewest are.
    """
    bits = dict.fromkeys(found, widths[-1])
    while not fits(bits):
        losses = {site: _loss(found[site], widths, bits[site], site, bytes_of) for site in bits}
        narrowed = min(losses, key=losses.__getitem__)
        if losses[narrowed] == float("inf"):
            raise ValueError(f"bytes must be enough for {widths[0]} bits everywhere, got fewer; take a larger budget")
        bits[narrowed] = widths[widths.index(bits[narrowed]) - 1]
    return bits


def _loss(c: float, widths: Sequence[int], bits: int, site: str, bytes_of: Callable[[str, int], int]) -> float:
    """Variance that a byte less costs."""
    place = widths.index(bits)
    if place == 0:
        return float("inf")
    less = widths[place - 1]
    return c * (4.0**-less - 4.0**-bits) / (bytes_of(site, bits) - bytes_of(site, less))
