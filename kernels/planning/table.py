"""The table of saved tensors in what a plan says of itself."""

from collections.abc import Sequence

from actfit.kernels.memory.saved import size
from actfit.kernels.planning.sensitivity import like_site
from actfit.kernels.planning.values import PlannedSite


def rows_of(sites: Sequence[PlannedSite]) -> list[str]:
    """A table of saved tensors, in which similar ones share a row."""
    groups: dict[str, list[PlannedSite]] = {}
    for site in sites:
        groups.setdefault(like_site(site.name), []).append(site)
    total = sum(site.error for site in sites) or 1.0
    rows = [
        ["saved tensor", "number", "bits", "before", "planned", "share of the error"],
        ["---", "---:", "---", "---:", "---:", "---:"],
    ]
    for name, group in groups.items():
        whole, planned = (
            size(sum(counts)) for counts in zip(*((site.whole, site.bytes) for site in group), strict=True)
        )
        error = sum(site.error for site in group)
        rows.append([name, str(len(group)), _widths(group), whole, planned, f"{error / total:.0%}"])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], lines[1].replace(" ", ""), *lines[2:]]


def _widths(group: list[PlannedSite]) -> str:
    """From the first site to the last: "4, 4, 3"; where all are alike "4"."""
    names = ["whole" if site.bits is None else str(site.bits) for site in group]
    return names[0] if len(set(names)) == 1 else ", ".join(names)
