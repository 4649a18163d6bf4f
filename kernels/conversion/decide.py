"""Decide, for auto: the method that saves least at each site, within a bound on the error of f'."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kernels.conversion.derivative_error import FORWARD_AD, methods_within
from kernels.conversion.measurement import Measurement, Run, measure_with
from kernels.conversion.sites import Site
from kernels.methods.few_bit import FewBit
from kernels.methods.forward_derivative import ForwardDerivative
from kernels.methods.from_output import FromOutput
from kernels.methods.method import Method

Kind = type[Method]
IDLE = "it saves nothing for backward with these inputs: it is not called, works in place, or gets no gradient"
IN_PLACE = "its output is changed in place afterwards, and this method needs it"


@dataclass(frozen=True)
class Comparison:
    """Runs of a model, and the methods that were compared."""

    stock: Measurement  # without changes
    runs: Mapping[Kind, Measurement]  # by the kind of method at all sites where it meets the bound; else forward-ad
    methods: Mapping[str, Mapping[Kind, Method]]  # those that meet the bound, by the name of each site that saves

    def serving(self, names: Collection[str]) -> list[Kind]:
        """The kinds that meet the bound at all of these sites."""
        return [kind for kind in self.runs if all(kind in self.methods[name] for name in names)]

    def kind_with_fewest_bytes(self, names: Collection[str]) -> Kind | None:
        """Of the kinds that meet the bound at all of these sites, the one with which they save the fewest bytes."""
        kinds = [kind for kind in self.serving(names) if not set(names) & set(self.runs[kind].changed)]
        return min(kinds, key=lambda kind: bytes_saved_only_by(names, self.runs[kind]), default=None)


def bytes_saved_only_by(names: Collection[str], run: Measurement) -> int:
    """The bytes that these sites save and no other operation does."""
    shared = sum(count for owners, count in run.shared.items() if owners <= set(names))
    return sum(run.alone[name] for name in names) + shared


def compare(
    selected: Collection[Site], sites: Collection[Site], stock: Measurement, run: Run, bound: float | None
) -> Comparison:
    """Run the model with each of three kinds of method at all sites; each run tells the bytes of every site apart."""
    exact = measure_with(dict.fromkeys(selected, FORWARD_AD), sites, run)
    methods: dict[Site, Mapping[Kind, Method]] = {}
    for site in selected:
        if site.name in exact.ours:
            function, dtypes = site.function, exact.dtypes
            within_bound = [FORWARD_AD] if function is None else methods_within(function, dtypes[site.name], bound)
            methods[site] = {type(method): method for method in within_bound}
    runs: dict[Kind, Measurement] = {ForwardDerivative: exact}
    for kind in (FromOutput, FewBit):
        runs[kind] = measure_with(
            {site: by_kind.get(kind, FORWARD_AD) for site, by_kind in methods.items()}, sites, run
        )
    return Comparison(stock, runs, {site.name: by_kind for site, by_kind in methods.items()})


def decide_by_measuring(
    selected: Collection[Site], sites: Collection[Site], stock: Measurement, run: Run, bound: float | None
) -> dict[Site, Method | str]:
    """The method of each selected site, or why it is left alone."""
    comparison = compare(selected, sites, stock, run, bound)
    decided = {site.name: _decide_site(site.name, comparison) for site in selected}
    for group in groups(stock.shared):
        if group <= comparison.methods.keys():
            decided |= _decide_group(group, comparison, decided)
    if comparison.methods and all(isinstance(outcome, str) for outcome in decided.values()):
        decided |= _decide_model(comparison)
    return {site: decided[site.name] for site in selected}


def _decide_site(name: str, comparison: Comparison) -> Method | str:
    stock, methods = comparison.stock, comparison.methods.get(name)
    if methods is None:
        return IDLE
    kind = comparison.kind_with_fewest_bytes([name])
    if kind is None:
        return IN_PLACE if methods else "nothing is within the bound on the error of f'"
    if comparison.runs[kind].alone[name] < stock.alone[name]:
        return methods[kind]
    reason = "nothing saves less within the bound on the error of f'"
    others = " and ".join(dict.fromkeys(stock.others.get(name, ())))
    return f"{reason}: what it saves is saved by {others}, too" if others else reason


def groups(shared: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Groups of sites that save the same tensors, directly or through a chain of other sites."""
    groups: list[frozenset[str]] = []
    for owners in shared:
        joined = [group for group in groups if group & owners]
        groups = [group for group in groups if group not in joined] + [owners.union(*joined)]
    return groups


def _decide_group(
    group: frozenset[str], comparison: Comparison, decided: Mapping[str, Method | str]
) -> Mapping[str, Method]:
    """One kind for sites that save the same tensor, if that saves less: it is freed only if all of them change."""
    stock, runs = comparison.stock, comparison.runs
    gained = 0
    for name in group:
        if isinstance(method := decided[name], Method):
            gained += stock.alone[name] - runs[type(method)].alone[name]
    kind = comparison.kind_with_fewest_bytes(group)
    if kind is None or bytes_saved_only_by(group, runs[kind]) >= bytes_saved_only_by(group, stock) - gained:
        return {}
    return {name: comparison.methods[name][kind] for name in group}


def _decide_model(comparison: Comparison) -> Mapping[str, Method]:
    """One kind for all sites, if the model then saves less though no single site does.

    In a wrapped model a chain's derivative counts for the operation that uses the chain's result.
    """
    names, runs = comparison.methods.keys(), comparison.runs
    kinds = [kind for kind in comparison.serving(names) if not runs[kind].changed]
    kind = min(kinds, key=lambda kind: runs[kind].saved.total, default=None)
    if kind is None or runs[kind].saved.total >= comparison.stock.saved.total:
        return {}
    return {name: comparison.methods[name][kind] for name in names}
