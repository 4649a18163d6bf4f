"""How an activation of a model is changed, and put back."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from kernels import modules
from kernels.approx_backprop.attached import Origin
from kernels.approx_backprop.forwards import Activated, Approximate
from kernels.conversion.calls import Act, Held, Rerouted
from kernels.conversion.known import Known
from kernels.conversion.sites import Place, Site
from kernels.errors import KernelError
from kernels.forward_ad.wrapping import unwrap, wrap
from kernels.forwarding import Forwarding
from kernels.methods.compressed import Compressed
from kernels.methods.method import Method
from kernels.modules import Remembering

# Ours by the catalogue's name; GELU has two, and goes by the first.
MODULES: dict[str, type[Remembering]] = {
    getattr(one, "function", "gelu"): one
    for one in vars(modules).values()
    if isinstance(one, type) and issubclass(one, Remembering) and one is not Remembering
}


@dataclass(frozen=True)
class Change:
    """What stood at a place and what stands there now; `undo` puts the very same object back."""

    place: Place
    kind: str
    old: Any
    new: Any

    def undo(self) -> None:
        """Put the old object back. Raises KernelError where neither stands there."""
        owner, key = self.place.owner, self.place.key
        if self.kind == "own":
            unwrap(owner)
            return
        if self.kind == "layer":
            self.new.remove(key)
            return
        if self.kind == "call":
            _unroute(owner, key, self.new)
            return
        if owner._modules.get(key) is not self.new:
            raise KernelError(f"{key} must be as convert left it, but was replaced since")
        if self.kind == "attribute":
            delattr(owner, key)
        if isinstance(self.old, nn.Module):
            self.old.training = self.new.training
        setattr(owner, key, self.old)


def undo(changes: list[Change]) -> None:
    """All of them, the last first. Raises KernelError, once the others are undone, for what was replaced since."""
    problems = []
    while changes:
        try:
            changes.pop().undo()
        except KernelError as error:
            problems.append(error)
    if problems:
        raise problems[0]


@dataclass(frozen=True)
class Decision:
    """What a site gets: a method; trusted: see `kernels.approx_backprop.attached.Origin`."""

    method: Method
    trusted: bool = False


def put(site: Site, decision: Decision, changes: list[Change]) -> None:
    """Apply the method at all places of a site; each change is appended as soon as it is made.

    Raises KernelError, before anything is changed, for what cannot be done.
    """
    if site.kind == "own":
        wrap(site.original, min_numel=0)
        changes.append(Change(Place(site.original, ""), site.kind, None, None))
        return
    if site.kind == "layer" and isinstance(decision.method, Compressed):
        origin = Origin(site.name, decision.trusted)
        _install(site, Approximate(site.original, decision.method, origin), changes)
        return
    if site.known is None:
        raise KernelError(site.why_not)
    if site.kind == "module" and isinstance(decision.method, Compressed):
        _install(site, Activated(site.original, site.known.function, site.known.params, decision.method), changes)
        return
    if site.kind == "module":
        site.placed = build(site.known, decision.method)
        site.placed.training = site.original.training
    elif site.kind == "attribute":
        site.placed = Held(site.original, site.known, decision.method)
    else:
        site.placed = Act(site.known, decision.method)
    for place in site.places:
        if isinstance(site.placed, Act) and site.kind == "call":
            _reroute(place, site.placed)
        else:
            setattr(place.owner, place.key, site.placed)
        changes.append(Change(place, site.kind, site.original, site.placed))


def _install(site: Site, forwarding: Forwarding, changes: list[Change]) -> None:
    """Let another forward stand for that of a module, which stays where it is."""
    site.placed = site.original
    changes.append(Change(Place(site.original, site.name), "layer", None, forwarding.install()))


def _reroute(place: Place, act: Act) -> None:
    present = vars(place.owner).get("forward")
    if not isinstance(present, Rerouted):
        present = Rerouted(place.owner, {}).install()
    present.acts[place.key] = act


def _unroute(owner: nn.Module, function: str, act: Act | None) -> None:
    present = vars(owner).get("forward")
    if not isinstance(present, Rerouted) or present.acts.get(function) is not act:
        raise KernelError(f"{function}() must be as convert left it, but its forward was replaced since")
    present.acts.pop(function, None)
    if not present.acts:
        present.remove(f"{function}()")


def fence(sites: Iterable[Site], changes: list[Change]) -> None:
    """Keep calls of activations that are left alone from those who reroute calls of the same function around them."""
    alone = list(sites)
    for call in [one for one in changes if one.kind == "call"]:
        inside = set(call.place.owner.modules()) - {call.place.owner}
        for site in alone:
            if site.known is None or site.known.called != call.place.key:
                continue
            inner = site.places[0].owner if site.kind == "call" else site.original
            around = bool(inside & {site.original, *(place.owner for place in site.places)})
            if around and isinstance(inner, nn.Module) and "forward" not in vars(inner):
                Rerouted(inner, {}).install()
                changes.append(Change(Place(inner, ""), "call", None, None))


def build(known: Known, method: Method) -> Remembering:
    """A module of ours that computes it. Raises KernelError where the method cannot serve it."""
    if known.function == "gelu_tanh":
        return MODULES["gelu"](approximate="tanh", **method.arguments())
    params: dict[str, Any] = dict(known.params)
    return MODULES[known.function](**params, **method.arguments())
