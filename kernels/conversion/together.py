"""What a trial run showed of a model's sites, and methods for several sites at once, where none gains by itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from kernels.conversion.sites import Site
from kernels.memory.saved import Saved
from kernels.methods.method import Method

Kind = type[Method]


@dataclass(frozen=True)
class Trial:
    """A run of a model, and by the names of its sites: how many bytes each alone keeps, and several and nobody else;
    the dtypes it keeps; which were seen to remember by a kernel of ours; of which a kept tensor was changed; and who
    else keeps a tensor that it keeps.
    """

    saved: Saved
    alone: dict[str, int]
    shared: dict[frozenset[str], int]
    dtypes: dict[str, torch.dtype]
    ours: set[str]
    changed: set[str]
    others: dict[str, list[str]]


def choose_for_all(
    wanted: Sequence[Site],
    stock: Trial,
    runs: Mapping[Kind, Trial],
    meeting: Mapping[str, Sequence[Method]],
    chosen: dict[str, Method],
) -> None:
    """One method for all sites, where the model then keeps less, though no site does by itself.

    So it is in a wrapped model: a chain's derivative is kept in the name of the operation that takes its result.
    """
    methods = {
        kind: {name: method for name in meeting for method in meeting[name] if type(method) is kind} for kind in runs
    }
    possible = [kind for kind in runs if methods[kind].keys() == meeting.keys() and not runs[kind].changed]
    least = min(possible, key=lambda kind: runs[kind].saved.total, default=None)
    if least is not None and runs[least].saved.total < stock.saved.total:
        chosen |= methods[least]
        for site in wanted:
            site.why_not = "" if site.name in chosen else site.why_not


def groups(shared: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Sites that keep a tensor together, also by way of others."""
    groups: list[frozenset[str]] = []
    for owners in shared:
        joined = [group for group in groups if group & owners]
        groups = [group for group in groups if group not in joined] + [owners.union(*joined)]
    return groups


def _together(group: frozenset[str], trial: Trial) -> int:
    """The bytes that sites keep, and nobody else."""
    return sum(trial.alone[name] for name in group) + sum(
        count for owners, count in trial.shared.items() if owners <= group
    )


def choose_together(
    group: frozenset[str],
    sites: Sequence[Site],
    stock: Trial,
    runs: Mapping[Kind, Trial],
    meeting: Mapping[str, Sequence[Method]],
    chosen: dict[str, Method],
) -> None:
    """One way for sites that keep a tensor together, where that is less: none can let go of it alone."""
    methods = {
        kind: {name: method for name in group for method in meeting[name] if type(method) is kind} for kind in runs
    }
    possible = [kind for kind in runs if methods[kind].keys() == group and not runs[kind].changed & group]
    least = min(possible, key=lambda kind: _together(group, runs[kind]), default=None)
    gained = sum(stock.alone[name] - runs[type(chosen[name])].alone[name] for name in group & chosen.keys())
    if least is not None and _together(group, runs[least]) < _together(group, stock) - gained:
        chosen |= methods[least]
        for site in sites:
            site.why_not = ""
