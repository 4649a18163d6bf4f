"""Finds the bits of each saved tensor within limits of memory: of the smallest error, or with the fewest in codes.

This is an integer programme, which SciPy's HiGHS solves: each site takes one width. Squared errors of sites add up, as
their roundings are independent.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actfit.kernels.errors import KernelError
from actfit.kernels.memory.saved import size
from actfit.kernels.methods.planned import WIDTHS
from actfit.kernels.planning.budget import Limits
from actfit.kernels.planning.sensitivity import Bits, SiteErrors
from actfit.kernels.planning.step import Step

BITS_OR_WHOLE: tuple[int | None, ...] = (*WIDTHS, None)
FLOOR, FLOOR_BITS = 1e-3, 4  # a share of the mean error at so many bits, see `_floor`
TIE = 1e-3  # elements in codes, as a share of all, that a bound's worth of error counts for
GAP, SECONDS = 1e-2, 5.0  # relative gap of what is minimised at which the search may end; and its time limit


class InfeasibleError(KernelError):
    """Raised if even the narrowest codes exceed the limits."""


@dataclass(frozen=True)
class Solution:
    """Bits by site; the sum of errors; and how far the least of what was minimised may be below, as a share."""

    bits: Mapping[str, int | None]
    error: float
    gap: float


def solve(step: Step, errors: SiteErrors, limits: Limits) -> Solution:
    """The bits with the smallest error; raises InfeasibleError, with the smallest possible limits, for smaller ones."""
    if not limits.hold(step, WIDTHS[0]):
        raise InfeasibleError(infeasible(step, limits))
    if not step.sites:
        return Solution({}, 0.0, 0.0)
    solution = _least(step, errors, _alone(step, errors) + _floor(step, errors), *_memory(step, limits))
    if solution is None:  # out of time
        uniform = widest(step, limits)
        return Solution(uniform, error_of(errors, uniform), 1.0)
    return solution


def with_fewest_codes(step: Step, errors: SiteErrors, limits: Limits, max_error: float) -> Solution | None:
    """The bits with the fewest elements in codes whose error is within a bound above 0; None if none was found.

    Codes take time by their elements, hardly by their bits. Of solutions with nearly as few, one with less error.
    """
    alone = _alone(step, errors)
    elements = np.repeat([float(site.per_bit) for site in step.sites], len(BITS_OR_WHOLE))
    elements[len(WIDTHS) :: len(BITS_OR_WHOLE)] = 0.0  # whole
    fewest = elements * len(WIDTHS) / (elements.sum() or 1.0) + TIE * alone / max_error
    rows, bounds = _memory(step, limits)
    return _least(step, errors, fewest, np.vstack([rows, alone / max_error]), np.append(bounds, 1.0))


def _least(
    step: Step, errors: SiteErrors, cost: NDArray[np.float64], rows: NDArray[np.float64], bounds: NDArray[np.float64]
) -> Solution | None:
    """The bits of the smallest sum of costs, each of a site and a width, where `rows` are within `bounds`."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    one_width_each = np.kron(np.eye(len(step.sites)), np.ones(len(BITS_OR_WHOLE)))
    whole = np.kron(np.eye(len(step.sites)), [0.0] * len(WIDTHS) + [1.0])
    # Whole for all sites that save the same tensor, or for none: there is one tensor.
    as_first = [whole[number] - whole[first] for first, *others in step.alike for number in others]
    equal = np.repeat([1.0, 0.0], [len(step.sites), len(as_first)])
    least, most = np.append(equal, np.full(len(rows), -np.inf)), np.append(equal, bounds)
    optimum = milp(
        cost / (cost.max(initial=0.0) or 1.0),
        integrality=np.ones_like(cost),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(csr_array(np.vstack([one_width_each, *as_first, rows])), least, most),
        options={"mip_rel_gap": GAP, "time_limit": SECONDS},
    )
    if optimum.x is None:
        return None
    columns = optimum.x.reshape(len(step.sites), len(BITS_OR_WHOLE)).argmax(1)
    bits = {site.name: BITS_OR_WHOLE[column] for site, column in zip(step.sites, columns, strict=True)}
    return Solution(bits, error_of(errors, bits), min(float(optimum.mip_gap or 0.0), 1.0))


def _alone(step: Step, errors: SiteErrors) -> NDArray[np.float64]:
    """The error of each width at each site alone."""
    return np.array([error_of(errors, {site.name: bits}) for site in step.sites for bits in BITS_OR_WHOLE])


def _floor(step: Step, errors: SiteErrors) -> NDArray[np.float64]:
    """A cost of each width at each site, small beside the mean error, which falls with bits as errors do.

    So spare memory is used, and tensors that have no effect yet, as before layers whose weights begin at 0, do not get
    the narrowest codes at once.
    """
    typical = float(np.mean([errors[site.name][FLOOR_BITS] for site in step.sites])) or 1.0
    whole = np.array([site.whole for site in step.sites], dtype=np.float64)
    falling = np.array([0.0 if bits is None else 4.0 ** (FLOOR_BITS - bits) for bits in BITS_OR_WHOLE])
    return np.outer(FLOOR * typical * whole / whole.mean(), falling).ravel()


def error_of(errors: SiteErrors, bits: Bits) -> float:
    """The sum of errors of codes with these bits at all sites."""
    return sum(errors[site][width] for site, width in bits.items() if width is not None)


def infeasible(step: Step, limits: Limits, bits: int | None = WIDTHS[0]) -> str:
    """The reason why the limits are too small, and the smallest budget that is not; bits: None for whole tensors."""
    kept, peak = step.kept_with(bits), step.peak_with(bits)
    least, got, rest = f"{size(kept, up=True)} kept for backward", limits.kept, "what must stay exact the rest"
    if got is None or kept <= got:
        least, got = f"{size(peak, up=True)} at the peak of a step", limits.peak
        rest = "tensors that operations work on the rest; take fewer samples at once"
    elif limits.stock is not None:
        share = math.ceil(1000 * (kept + 1) / limits.stock) / 1000
        if share >= 1:
            what = "exact ways" if bits is None else "codes"
            return (
                f"{limits.argument} must be left out for a model that {what} cannot make smaller, got {size(got)} of"
                f" {size(kept)}"
            )
        least = f"{share:g}, {least}"
    if bits is None:
        why = "exact gradients take as much, with all blocks computed again that can be; max_gradient_error may allow"
        why += " less"
    else:
        held = f"weights, batch and optimizer take {size(limits.held)}, " if limits.held else ""
        codes = size(sum(site.bytes(bits) for site in step.sites))
        why = f"{held}with {bits} bits everywhere codes take {codes}, and {rest}"
    return f"{limits.argument} must be at least {least}, got {size(got or 0)}: {why}"


def _memory(step: Step, limits: Limits) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each limit that whole tensors would exceed: a row with the bytes of each width, and their upper bound."""
    rows, bounds = [], []
    byte_counts = np.array([[site.bytes(bits) for bits in BITS_OR_WHOLE] for site in step.sites], dtype=np.float64)
    now = np.array([site.bytes(step.bits) for site in step.sites], dtype=np.float64)
    # When they are alive, by site and width: a whole tensor of several sites is the first one's, and alive for all.
    born, dead = (
        np.array([[getattr(site, name)] * len(BITS_OR_WHOLE) for site in step.sites]) for name in ("born", "dead")
    )
    for group in step.alike:
        born[group[0], -1], dead[group[0], -1] = born[group, -1].min(), dead[group, -1].max()
        byte_counts[group[1:], -1] = 0.0

    def limit(alive: NDArray[np.bool_], bytes_now: int, allowed: int) -> None:
        rest, counts = bytes_now - now[alive[:, 0]].sum(), byte_counts * alive
        if rest + counts.max(1, initial=0.0).sum() > allowed:
            rows.append(counts.ravel())
            bounds.append(allowed - rest)

    if limits.peak is not None:
        for segment, peak in enumerate(step.peaks):
            limit((born <= segment) & (segment < dead), peak, limits.peak)
    if limits.kept is not None:
        limit((born < step.backward) & (step.backward <= dead), step.kept, limits.kept)
    return np.array(rows).reshape(-1, byte_counts.size), np.array(bounds)


def widest(step: Step, limits: Limits) -> dict[str, int | None]:
    """The widest codes, the same at every site, that stay within the limits; raises KernelError as `solve` does."""
    for bits in reversed(WIDTHS):
        if limits.hold(step, bits):
            return step.everywhere(bits)
    raise InfeasibleError(infeasible(step, limits))
