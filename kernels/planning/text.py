"""What a plan says of itself: a few lines, and a table of the saved tensors."""

from typing import TYPE_CHECKING

from actfit.kernels.memory.saved import size
from actfit.kernels.planning.sensitivity import like_site
from actfit.kernels.planning.values import PlannedSite

if TYPE_CHECKING:
    from actfit.kernels.planning.plan import Plan


def summary_of(plan: "Plan") -> list[str]:
    """Lines that say what it does to a step."""
    before, planned = plan.stock.peak_text, plan.planned.peak_text
    peak = "" if plan.planned.peak is None else f"; peak of a step {before} before, {planned} planned"
    on = f" (measured on {plan.measured_on})" if plan.measured_on else ""
    on_gpu = " by what an H100 takes" if plan.measured_on else ""
    uniform = f"; with {plan.uniform} bits everywhere {plan.uniform_error:.2%}{on}"
    error = f"{plan.errors.measured:.2%} measured, {plan.errors.predicted:.2%} predicted{uniform}"
    return [
        f"{plan.model}, budget {plan.budget}: kept for backward {size(plan.stock.kept)} before,"
        f" {size(plan.planned.kept)} planned{peak}",
        f"error of the gradient: {error if plan.uniform else '0, as nothing is quantized'}",
        *([f"computed again in backward: {_blocks(plan.recomputed)}"] if plan.recomputed else []),
        *([f"as they are: {_blocks(plan.unchanged)}"] if plan.unchanged else []),
        *([f"time of a step: {plan.time:.2f} × as long, predicted{on_gpu}"] if plan.time else []),
        *([f"products of matrices, convolutions and attention: {plan.work:.2f} × as many"] if plan.work else []),
    ]


def text_of(plan: "Plan") -> str:
    """What `str(plan)` is."""
    if not plan.needed:
        if plan.reason:
            return f"{plan.model} is left as it is: {plan.reason}"
        if plan.compiled:
            return f"{plan.model} has nothing for codes when it is compiled: it keeps {size(plan.planned.kept)}"
        return (
            f"{plan.model} needs no plan for a budget of {plan.budget}: it keeps {size(plan.stock.kept)} for"
            f" backward, and its peak is {plan.stock.peak_text}"
        )
    table = ["", *_rows(plan)] if plan.sites else []
    return "\n".join([*summary_of(plan), *table, *([_gap(plan)] if plan.gap else [])])


def _rows(plan: "Plan") -> list[str]:
    groups: dict[str, list[PlannedSite]] = {}
    for site in plan.sites:
        groups.setdefault(like_site(site.name), []).append(site)
    total = sum(site.error for site in plan.sites) or 1.0
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


def _gap(plan: "Plan") -> str:
    if plan.gap >= 1:
        return "The search ran out of time: how far this is from the least is not known."
    if plan.goal == "time":
        return f"Up to {1 / (1 - plan.gap) - 1:.1%} more elements may be in codes than need be."
    return f"The predicted error may be up to {1 / (1 - plan.gap) ** 0.5 - 1:.1%} above the least there is."


def _blocks(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} blocks, {names[0]} to {names[-1]}"


def _widths(group: list[PlannedSite]) -> str:
    """From the first site to the last: "4, 4, 3"; where all are alike "4"."""
    names = ["whole" if site.bits is None else str(site.bits) for site in group]
    return names[0] if len(set(names)) == 1 else ", ".join(names)
