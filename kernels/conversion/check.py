"""Check a converted model by a run: sites that do not save as decided are left alone."""

from dataclasses import replace

from kernels.approx_backprop.attached import watching
from kernels.conversion.changes import Change, Decision, Outcomes, apply_decisions, undo
from kernels.conversion.decide import IN_PLACE
from kernels.conversion.layers import is_written_norm
from kernels.conversion.measurement import Measurement, Run, measure
from kernels.conversion.sites import AttributeSite, CallSite, LayerSite, Site
from kernels.methods.forward_derivative import ForwardDerivative

UNREACHED = "not reached with these inputs: it is never called, works in place, or has parameters without a kernel"
GIVEN_MORE = (
    "with these inputs it is not called by one tensor alone: what it is given besides is not known, as of a gate"
)
IN_A_CHAIN = (
    "it is one of a chain of operations, and would save more by itself; the chain saves one tensor by"
    " kernels.forward_ad.wrap"
)


def check(outcomes: Outcomes, before: Measurement, run: Run, changes: list[Change]) -> tuple[Measurement, Outcomes]:
    """What is saved after the changes, and the outcome of each site. If outcomes differ, all changes are made anew."""
    with watching() as changed:
        after = measure(outcomes, run, changes)
    checked = dict(outcomes)
    for site, outcome in outcomes.items():
        if isinstance(outcome, Decision):
            # torch.compile does not see which results are changed in place: those seen here are not trusted.
            trusted = isinstance(site, LayerSite) and site.name not in changed
            checked[site] = _failure(site, outcome, before, after) or replace(outcome, trusted=trusted)
    if checked == outcomes:
        return after, outcomes
    undo(changes)
    applied = apply_decisions(checked, changes)
    same = all(type(checked[site]) is type(outcome) for site, outcome in outcomes.items())
    return after if same else measure(outcomes, run, changes), applied  # trust matters to torch.compile only


def _failure(site: Site, decision: Decision, before: Measurement, after: Measurement) -> str:
    """Why a site cannot have its method, or ""."""
    name = site.name
    if name in after.changed:
        return IN_PLACE
    if isinstance(site, AttributeSite | CallSite) and name not in after.ours:
        return UNREACHED
    if isinstance(site, LayerSite) and is_written_norm(site.original) and name not in after.ours and before.alone[name]:
        return GIVEN_MORE  # as a norm with a gate
    # Its derivative is saved in addition, as other operations still save what it saved before.
    if isinstance(site, CallSite) and isinstance(decision.method, ForwardDerivative):
        return IN_A_CHAIN if after.alone[name] > before.alone[name] else ""
    return ""
