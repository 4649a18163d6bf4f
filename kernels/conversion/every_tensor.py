"""compress: modules all of whose saved tensors are kept in few bits. A site is a module with all that is in it."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from kernels.conversion.changes import Change, StandIn, undo
from kernels.conversion.find import names_of_modules
from kernels.conversion.measurement import Run
from kernels.conversion.recognise import describe
from kernels.conversion.report import Converted, Report, revertible
from kernels.conversion.sites import LayerSite, Site, select_sites, within
from kernels.eager import InFewBits, Recomputed, Untouched, watching
from kernels.errors import KernelError
from kernels.forwarding import Forwarding, standing
from kernels.memory.measure import has_forward
from kernels.methods.every_tensor import EveryTensor
from kernels.planning.plan import Plan

WITHIN = "it is within the budget as it is"
TWICE = "it goes by compress already; revert that first"


def convert_modules(
    model: nn.Module,
    method: EveryTensor,
    include: Sequence[str] | None,
    exclude: Sequence[str] | None,
    run: Run | None,
    plan: Plan | None = None,
) -> Report:
    """Change the model, or the modules that `include` names, and leave those alone in them that `exclude` names.

    By a plan, which is of the whole model, `method` is not asked.

    Raises
    ------
    KernelError
        For a pattern that fits no module. Whatever is raised, the model is then as it was.
    """
    sites = [
        LayerSite(names, describe(module), None, module)
        for module, names in names_of_modules(model).items()
        if has_forward(module)
    ]
    reasons = select_sites(dict.fromkeys(sites, ""), include, exclude)
    chosen = _outermost([site for site in sites if reasons[site] != "not included"])
    left = _outermost([site for site in sites if reasons[site] == "excluded"])
    if plan is not None:
        method, reasons = plan.method, reasons if plan.needed else dict.fromkeys(reasons, WITHIN)
    changes: list[Change] = []
    if plan is not None and any(isinstance(forward, InFewBits) for forward in standing(model)[0]):
        raise KernelError(f"model must be converted once, got one for which {TWICE}")
    before = None if run is None else run({})
    try:
        for name in () if plan is None else plan.recomputed:
            block = model.get_submodule(name)
            _install(LayerSite((name,), describe(block), None, block), Recomputed(block), changes)
        rows = [_converted(site, method, reasons[site], changes) for site in chosen]
        for site in left:
            _install(site, Untouched(site.original), changes)
        with watching() as whole:
            after = None if run is None else run({})
    except BaseException:
        undo(changes)
        raise
    if before is not None and after is not None and chosen == sites[:1]:  # of the model itself all is known
        rows = [replace(row, before=before.total, after=after.total) for row in rows]
    return revertible(Report(rows, before, after, tuple(whole.values()), plan), changes)


def _outermost(sites: Sequence[Site]) -> list[Site]:
    """Those that are in none of the others. The model's own name is empty."""
    found: list[Site] = []
    for site in sites:  # a module comes after those that it is in
        around = [name for outer in found for name in outer.names]
        if not all(any(not outer or within(name, outer) for outer in around) for name in site.names):
            found.append(site)
    return found


def _converted(site: Site, method: EveryTensor, reason: str, changes: list[Change]) -> Converted:
    forwards, _ = standing(site.original)
    if any(isinstance(forward, InFewBits) for forward in forwards):
        reason = TWICE
    if not reason:
        _install(site, InFewBits(site.original, method), changes)
    now = site.description if reason else str(method)
    return Converted(site.name or "(model)", "", site.description, now, reason=reason)


def _install(site: Site, forward: Forwarding, changes: list[Change]) -> None:
    change = StandIn(site, forward)
    change.apply()
    changes.append(change)
