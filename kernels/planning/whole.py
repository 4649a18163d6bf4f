"""Tensors that stay whole, as codes of them would make the peak of a step larger.

Backward decodes a tensor as a whole for an operation that does not read it by pieces, and forward encodes it while it
is whole. If a step's peak is then, as of the logits of a large vocabulary, it is lower without these codes.
"""

from collections.abc import Callable, Set

from actfit.kernels.methods.planned import WIDTHS
from actfit.kernels.planning.step import Step

TRIES = 8  # steps that are observed; the models tried needed at most 3
PART = 8  # Tensors of less than this part of a peak are left in codes: a step takes seconds to observe; our choice.


def least_peak(observed: Callable[[Set[str]], Step], whole: Set[str]) -> Step:
    """The step with the lowest peak that was found, with the narrowest codes at all sites but those that stay whole.

    Parameters
    ----------
    observed
        A step, by the names of sites that stay whole.
    whole
        Names to begin with.
    """
    step = observed(whole)
    for _ in range(TRIES):
        if not (more := _at_peak(step)):
            break
        tried = observed({*step.whole, *more})
        if _peak(tried) >= _peak(step):
            break
        step = tried
    return step


def _peak(step: Step) -> int:
    return step.peak_with(WIDTHS[0]) or 0


def _at_peak(step: Step) -> set[str]:
    """Sites that are whole beside their codes at the peak: just encoded, or decoded. None if they are small."""
    peaks = step.peaks_with(WIDTHS[0])
    peak = peaks.index(max(peaks)) if peaks else -1
    sites = {
        site.name: site.whole
        for site in step.sites
        if site.born - 1 == peak or any(first <= peak <= last for first, last in site.decoded)
    }
    return set(sites) if PART * sum(sites.values()) >= max(peaks, default=0) else set()
