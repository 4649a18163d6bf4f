"""A plan as text: its bytes and errors, and a table of like tensors."""

from typing import TYPE_CHECKING

from kernels.memory.saved import size
from kernels.planning.sensitivity import like_site

if TYPE_CHECKING:
    from kernels.planning.plan import Plan, PlannedSite


def table_of(plan: "Plan") -> str:
    """What `str(plan)` is."""
    if not plan.needed:
        if plan.compiled:
            return f"{plan.model} has nothing for codes when it is compiled: it keeps {size(plan.planned.kept)}"
        return (
            f"{plan.model} needs no plan for a budget of {plan.budget}: it keeps {size(plan.stock.kept)} for"
            f" backward, and its peak is {plan.stock.peak_text}"
        )
    before, planned = plan.stock.peak_text, plan.planned.peak_text
    peak = "" if plan.planned.peak is None else f"; peak of a step {before} before, {planned} planned"
    on = f" (measured on {plan.measured_on})" if plan.measured_on else ""
    lines = [
        f"{plan.model}, budget {plan.budget}: kept for backward {size(plan.stock.kept)} before,"
        f" {size(plan.planned.kept)} planned{peak}",
        f"error of the gradient: {plan.errors.measured:.2%} measured, {plan.errors.predicted:.2%} predicted;"
        f" with {plan.uniform} bits everywhere {plan.uniform_error:.2%}{on}",
        *([f"computed again in backward: {_blocks(plan.recomputed)}"] if plan.recomputed else []),
        *([f"products of matrices, convolutions and attention: {plan.work:.2f} × as many"] if plan.work else []),
        *([f"time of a step of samples: {plan.time:.2f} × as long, measured"] if plan.time is not None else []),
        "",
    ]
    return "\n".join([*lines, *_rows(plan), *([_gap(plan)] if plan.gap else [])])


def _rows(plan: "Plan") -> list[str]:
    """A table; the time of codes, × a step of the unchanged model, is its last column if it was measured."""
    groups: dict[str, list[PlannedSite]] = {}
    for site in plan.sites:
        groups.setdefault(like_site(site.name), []).append(site)
    total = sum(site.error for site in plan.sites) or 1.0
    rows = [
        ["saved tensor", "number", "bits", "before", "planned", "share of the error", "time"],
        ["---", "---:", "---", "---:", "---:", "---:", "---:"],
    ]
    for name, group in groups.items():
        whole, planned = (
            size(sum(counts)) for counts in zip(*((site.whole, site.bytes) for site in group), strict=True)
        )
        error, time = sum(site.error for site in group), sum(site.time or 0.0 for site in group)
        rows.append([name, str(len(group)), _widths(group), whole, planned, f"{error / total:.0%}", f"{time:.3f}"])
    shown = len(rows[0]) - (plan.time is None)
    lines = [f"| {' | '.join(row[:shown])} |" for row in rows]
    return [lines[0], lines[1].replace(" ", ""), *lines[2:]]


def _gap(plan: "Plan") -> str:
    if plan.goal == "time":
        return f"Up to {1 / (1 - plan.gap) - 1:.1%} more elements may be in codes than need be."
    return f"The predicted error may be up to {1 / (1 - plan.gap) ** 0.5 - 1:.1%} above the least there is."


def _blocks(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} blocks, {names[0]} to {names[-1]}"


def _widths(group: "list[PlannedSite]") -> str:
    """From the first site to the last: "4, 4, 3"; where all are alike "4"."""
    names = ["whole" if site.bits is None else str(site.bits) for site in group]
    return names[0] if len(set(names)) == 1 else ", ".join(names)
