"""compress: stores all saved tensors of modules in few bits. A site is a module with everything inside it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from kernels.conversion.changes import Change, ReplaceForward, undo
from kernels.conversion.find import names_of_modules
from kernels.conversion.measurement import Run
from kernels.conversion.recognise import describe
from kernels.conversion.report import Converted, Report, revertible
from kernels.conversion.sites import LayerSite, Site, select_sites, within
from kernels.eager import InFewBits, InFewBitsApart, Recomputed, Untouched, Watch, watching
from kernels.errors import KernelError
from kernels.forwarding import Forwarding, installed_forwards
from kernels.memory.measure import has_forward
from kernels.memory.step import Loss
from kernels.methods.every_tensor import EveryTensor
from kernels.planning.batches import call_of
from kernels.planning.plan import Plan
from kernels.planning.safety import Checked, check_conversion

WITHIN = "it is within the budget as it is"
TWICE = "it goes by compress already; revert that first"
STACK_LEVEL = 4  # the caller of convert, seen from `_caught`


class Net(NamedTuple):
    """What the error of a gradient is measured with: see `kernels.planning.safety`."""

    inputs: Any
    loss: Loss | None = None
    targets: Any = None
    strict: bool = False


def convert_modules(
    model: nn.Module,
    method: EveryTensor,
    include: Sequence[str] | None,
    exclude: Sequence[str] | None,
    run: Run | None,
    plan: Plan | None = None,
    net: Net | None = None,
) -> Report:
    """Change the model, or the modules that `include` names, except the modules inside that `exclude` names.

    With a plan, which covers the whole model, `method` is ignored. With a net, the error of the gradient is measured
    before.

    Raises
    ------
    KernelError
        For a pattern that matches no module, and of a strict net. If anything is raised, the model is unchanged.
    """
    sites = [
        LayerSite(names, describe(module), None, module)
        for module, names in names_of_modules(model).items()
        if has_forward(module)
    ]
    reasons = select_sites(dict.fromkeys(sites, ""), include, exclude)
    selected = _outermost([site for site in sites if reasons[site] != "not included"])
    excluded = _outermost([site for site in sites if reasons[site] == "excluded"])
    if plan is not None:
        method, reasons = plan.method, reasons if plan.needed else dict.fromkeys(reasons, plan.reason or WITHIN)
    changes: list[Change] = []
    if selected and all(_is_converted(site.original) for site in selected):
        raise once(selected[0].original)
    before = None if run is None else run({})
    checked = None if net is None else _caught(model, net, method, plan, selected, excluded)
    watch = None if plan is None else Watch(plan.decoded)
    try:
        for name in () if plan is None else plan.recomputed:
            block = model.get_submodule(name)
            _install(LayerSite((name,), describe(block), None, block), Recomputed(block), changes)
        rows = [_converted(site, method, reasons[site], changes, watch) for site in selected]
        for site in excluded:
            _install(site, Untouched(site.original), changes)
        for site in _called_apart(selected, sites, excluded) if plan is None or plan.needed else ():
            _install(site, InFewBitsApart(site.original, method, site.name), changes)
        with watching() as whole:
            after = None if run is None else run({})
    except BaseException:
        undo(changes)
        raise
    if before is not None and after is not None and selected == sites[:1]:  # the model itself: totals are its own
        rows = [replace(row, before=before.total, after=after.total) for row in rows]
    return revertible(Report(rows, before, after, tuple(whole.values()), plan, checked, watch), changes)


def _caught(
    model: nn.Module,
    net: Net,
    method: EveryTensor,
    plan: Plan | None,
    selected: Sequence[Site],
    excluded: Sequence[Site],
) -> Checked | None:
    """The error of the gradient, of which it warns; None if nothing is converted."""
    if plan is not None and not plan.needed:
        return None
    if any(isinstance(forward, InFewBits) for site in selected for forward in installed_forwards(site.original)[0]):
        return None

    def includes(module: str) -> bool:
        of_selected, of_excluded = (
            any(not name or within(module, name) for site in sites for name in site.names)
            for sites in (selected, excluded)
        )
        return of_selected and not of_excluded

    planned = None if plan is None else max(plan.errors.predicted, plan.errors.measured)
    recomputed = () if plan is None else plan.recomputed
    call = call_of(net.inputs)
    checked = check_conversion(model, call, net.loss, net.targets, method, recomputed, includes, planned)
    checked.tell(net.strict, STACK_LEVEL)
    return checked


def _outermost(sites: Sequence[Site]) -> list[Site]:
    """The sites that are inside no other. The name of the model itself is empty."""
    outermost: list[Site] = []
    for site in sites:  # a module comes after those around it
        around = [name for outer in outermost for name in outer.names]
        if not all(any(not outer or within(name, outer) for outer in around) for name in site.names):
            outermost.append(site)
    return outermost


def _called_apart(selected: Sequence[Site], sites: Sequence[Site], excluded: Sequence[Site]) -> list[Site]:
    """The outermost modules inside the selected ones that have parts: methods other than forward may call them."""
    inside = {module for site in selected for module in site.original.modules()} - {site.original for site in selected}
    inside -= {module for site in excluded for module in site.original.modules()}
    inner = [site for site in sites if site.original in inside and next(site.original.children(), None) is not None]
    return [site for site in _outermost(inner) if not _is_converted(site.original)]


def _is_converted(module: nn.Module) -> bool:
    return any(isinstance(forward, InFewBits) for forward in installed_forwards(module)[0])


def once(module: nn.Module) -> KernelError:
    """The error for a module that is converted a second time."""
    forward = next(forward for forward in installed_forwards(module)[0] if isinstance(forward, InFewBits))
    return KernelError(
        f"model must be converted once, got one that goes by {forward.options.method.name} already; call revert() of"
        " its report before"
    )


def check_once(model: nn.Module) -> None:
    """Raise KernelError for a model of which a part is converted, which a plan cannot cover."""
    for module in model.modules():
        if _is_converted(module):
            raise once(module)


def _converted(site: Site, method: EveryTensor, reason: str, changes: list[Change], watch: Watch | None) -> Converted:
    if _is_converted(site.original):
        reason = TWICE
    if not reason:
        _install(site, InFewBits(site.original, method, watch=watch), changes)
    now = site.description if reason else str(method)
    return Converted(site.name or "(model)", "", site.description, now, reason=reason)


def _install(site: Site, forward: Forwarding, changes: list[Change]) -> None:
    change = ReplaceForward(site, forward)
    change.apply()
    changes.append(change)
