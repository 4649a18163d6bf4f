"""The bits of each saved tensor with which the gradient's error is least, and memory stays within limits.

An integer programme: one of the widths of each site is taken. Errors of sites add up, as squares of what they do to
the gradient, since their roundings have nothing to do with each other. SciPy's HiGHS solves it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.errors import KernelError
from kernels.memory.saved import size
from kernels.methods.planned import WIDTHS
from kernels.planning.limits import Limits
from kernels.planning.observe import Step
from kernels.planning.sensitivity import Bits, SiteErrors

CHOICES: tuple[int | None, ...] = (*WIDTHS, None)
FLOOR, FLOOR_BITS = 1e-3, 4  # a share of the mean error at so many bits, see `_floor`
GAP, SECONDS = 1e-2, 5.0  # of the least error's square: where the search for less may end; and its time


class InfeasibleError(KernelError):
    """Not even the narrowest codes are within the limits."""


@dataclass(frozen=True)
class Solution:
    """Bits by site; the sum of errors, and how far below it the least may be, as a share."""

    bits: Mapping[str, int | None]
    error: float
    gap: float


def solve(step: Step, errors: SiteErrors, limits: Limits) -> Solution:
    """The plan of least error.

    Raises
    ------
    InfeasibleError
        If the limits cannot be held: with the least that can be, and what takes it.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    if not limits.hold(step, everywhere(step, WIDTHS[0])):
        raise InfeasibleError(infeasible(step, limits))
    if not step.sites:
        return Solution({}, 0.0, 0.0)
    alone = np.array([error_of(errors, {site.name: bits}) for site in step.sites for bits in CHOICES])
    cost = alone + _floor(step, errors)
    scale = cost.max(initial=0.0) or 1.0
    rows, bounds = _memory(step, limits)
    one = np.kron(np.eye(len(step.sites)), np.ones(len(CHOICES)))
    found = milp(
        cost / scale,
        integrality=np.ones_like(cost),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(csr_array(one), 1, 1),
            *([LinearConstraint(csr_array(rows), -np.inf, bounds)] if len(rows) else []),
        ],
        options={"mip_rel_gap": GAP, "time_limit": SECONDS},
    )
    if found.x is None:
        uniform = widest(step, limits)
        return Solution(uniform, error_of(errors, uniform), 1.0)
    picked = found.x.reshape(len(step.sites), len(CHOICES)).argmax(1)
    bits = {site.name: CHOICES[place] for site, place in zip(step.sites, picked, strict=True)}
    return Solution(bits, error_of(errors, bits), float(found.mip_gap or 0.0))


def _floor(step: Step, errors: SiteErrors) -> NDArray[np.float64]:
    """A cost of each choice at each site that is small beside the mean one, and falls with bits as errors do.

    So memory that is left is used, and tensors that do nothing yet, as before layers whose weights begin at 0, do not
    get the narrowest codes at once.
    """
    typical = float(np.mean([errors[site.name][FLOOR_BITS] for site in step.sites])) or 1.0
    whole = np.array([site.whole for site in step.sites], dtype=np.float64)
    falling = np.array([0.0 if bits is None else 4.0 ** (FLOOR_BITS - bits) for bits in CHOICES])
    return np.outer(FLOOR * typical * whole / whole.mean(), falling).ravel()


def error_of(errors: SiteErrors, bits: Bits) -> float:
    """The sum of what codes of these bits do at all sites."""
    return sum(errors[site][width] for site, width in bits.items() if width is not None)


def everywhere(step: Step, bits: int) -> dict[str, int]:
    """The same bits at every site."""
    return dict.fromkeys([site.name for site in step.sites], bits)


def infeasible(step: Step, limits: Limits) -> str:
    """Why limits cannot be held."""
    least = everywhere(step, WIDTHS[0])
    codes = f"with {WIDTHS[0]} bits everywhere codes take {size(sum(site.bytes(WIDTHS[0]) for site in step.sites))}"
    kept, peak = step.kept_with(least), step.peak_with(least)
    if limits.kept is not None and kept > limits.kept:
        return (
            f"budget must be at least {size(kept)} kept for backward, got {size(limits.kept)}: {codes}, and what must"
            " stay exact the rest"
        )
    return (
        f"budget must be at least {size(peak or 0)} at the peak of a step, got {size(limits.peak or 0)}: {codes}, and"
        " tensors that operations work on the rest; take fewer samples at once"
    )


def _memory(step: Step, limits: Limits) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each limit that is not held with whole tensors everywhere: bytes of each choice, and how many there may be."""
    rows, bounds = [], []
    choices = np.array([[site.bytes(bits) for bits in CHOICES] for site in step.sites], dtype=np.float64)
    now = np.array([site.bytes(step.bits) for site in step.sites], dtype=np.float64)
    born, dead = (np.array([getattr(site, name) for site in step.sites]) for name in ("born", "dead"))

    def limit(alive: NDArray[np.bool_], bytes_now: int, most: int) -> None:
        rest = bytes_now - now[alive].sum()
        if rest + choices[alive].max(1, initial=0.0).sum() > most:
            rows.append((choices * alive[:, None]).ravel())
            bounds.append(most - rest)

    if limits.peak is not None:
        for segment, peak in enumerate(step.peaks):
            limit((born <= segment) & (segment < dead), peak, limits.peak)
    if limits.kept is not None:
        limit((born < step.backward) & (step.backward <= dead), step.kept, limits.kept)
    return np.array(rows).reshape(-1, choices.size), np.array(bounds)


def widest(step: Step, limits: Limits, widths: Sequence[int] = WIDTHS) -> dict[str, int]:
    """The widest codes, the same at every site, with which the limits are held; raises KernelError as `solve` does."""
    for bits in reversed(widths):
        uniform = everywhere(step, bits)
        if limits.hold(step, uniform):
            return uniform
    raise InfeasibleError(infeasible(step, limits))
