"""Apply: the kinds of changes to a model's sites, each of which can be undone."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from kernels import modules
from kernels.approx_backprop.attached import Origin
from kernels.approx_backprop.forwards import Activated, Approximate
from kernels.conversion.calls import CalledFunction, HeldFunction, ReroutedForward
from kernels.conversion.function import Function
from kernels.conversion.sites import ActivationSite, AttributeSite, CallSite, LayerSite, Place, Site
from kernels.errors import KernelError
from kernels.forward_ad.wrapping import unwrap, wrap
from kernels.forwarding import Forwarding
from kernels.methods.compressed import Compressed
from kernels.methods.method import Method
from kernels.modules import Activation

# Modules of this package by the function's torch name; GELU has no `function`, as it computes two.
MODULES: dict[str, type[Activation]] = {
    getattr(kind, "function", "gelu"): kind
    for kind in vars(modules).values()
    if isinstance(kind, type) and issubclass(kind, Activation) and kind is not Activation
}


@dataclass(frozen=True)
class Decision:
    """What a site gets."""

    method: Method
    trusted: bool = False  # of a layer, see `kernels.approx_backprop.attached.Origin`


Outcomes = dict[Site, Decision | str]  # what each site gets, or why it is left alone


class Change(ABC):
    """One change of a model."""

    @abstractmethod
    def apply(self) -> None:
        """Make the change."""

    @abstractmethod
    def undo(self) -> None:
        """Restore the original object. Raises KernelError if it was replaced again since."""


@dataclass(frozen=True)
class ReplaceModule(Change):
    """Replaces a module by another."""

    site: Site
    place: Place
    new: nn.Module

    def apply(self) -> None:
        setattr(self.place.owner, self.place.key, self.new)

    def undo(self) -> None:
        owner, key = self.place.owner, self.place.key
        if owner._modules.get(key) is not self.new:
            raise KernelError(f"{key} must be as convert left it, but was replaced since")
        self._put_back(owner, key)

    def _put_back(self, owner: nn.Module, key: str) -> None:
        self.site.original.training = self.new.training
        setattr(owner, key, self.site.original)


@dataclass(frozen=True)
class ReplaceAttribute(ReplaceModule):
    """Replaces a function in an attribute by a module."""

    def _put_back(self, owner: nn.Module, key: str) -> None:
        delattr(owner, key)
        setattr(owner, key, self.site.original)


@dataclass(frozen=True)
class RerouteCalls(Change):
    """Reroutes calls of a function in a forward to a module."""

    site: Site
    place: Place
    new: CalledFunction

    def apply(self) -> None:
        forward = vars(self.place.owner).get("forward")
        if not isinstance(forward, ReroutedForward):
            forward = ReroutedForward(self.place.owner, {}).install()
        forward.functions[self.place.key] = self.new

    def undo(self) -> None:
        owner, key = self.place.owner, self.place.key
        forward = vars(owner).get("forward")
        if not isinstance(forward, ReroutedForward) or forward.functions.get(key) is not self.new:
            raise KernelError(f"{key}() must be as convert left it, but its forward was replaced since")
        del forward.functions[key]
        if not forward.functions:
            forward.remove(f"{key}()")


@dataclass(frozen=True)
class IsolateCalls(Change):
    """Keeps enclosing modules from rerouting calls in a module."""

    module: nn.Module

    def apply(self) -> None:
        ReroutedForward(self.module, {}).install()

    def undo(self) -> None:
        forward, name = vars(self.module).get("forward"), type(self.module).__name__
        if not isinstance(forward, ReroutedForward):
            raise KernelError(f"{name} must be as convert left it, but its forward was replaced since")
        if not forward.functions:  # else calls of its own were rerouted since
            forward.remove(name)


@dataclass(frozen=True)
class ReplaceForward(Change):
    """Replaces the forward of a module, which stays where it is."""

    site: Site
    forward: Forwarding

    def apply(self) -> None:
        self.forward.install()

    def undo(self) -> None:
        self.forward.remove(self.site.name)


@dataclass(frozen=True)
class RunNested(Change):
    """Runs the forward of a module in nested forward AD."""

    module: nn.Module

    def apply(self) -> None:
        wrap(self.module, min_numel=0)

    def undo(self) -> None:
        unwrap(self.module)


def changes_for(site: Site, decision: Decision) -> list[Change]:
    """The changes that a decision makes at a site. Raises KernelError if the method does not support the site."""
    method, original = decision.method, site.original
    if not isinstance(site, ActivationSite):
        if isinstance(site, LayerSite) and isinstance(method, Compressed):
            return [ReplaceForward(site, Approximate(original, method, Origin(site.name, decision.trusted)))]
        return [RunNested(original)]
    function = site.function
    if isinstance(site, CallSite):
        called = CalledFunction(function, method)
        return [RerouteCalls(site, place, called) for place in site.places]
    if isinstance(site, AttributeSite):
        replacement = HeldFunction(original, function, method)
        return [ReplaceAttribute(site, place, replacement) for place in site.places]
    if isinstance(method, Compressed):
        return [ReplaceForward(site, Activated(original, function.name, function.parameters, method))]
    module = build(function, method)
    module.training = original.training
    return [ReplaceModule(site, place, module) for place in site.places]


def build(function: Function, method: Method) -> Activation:
    """A module of this package that computes the function. Raises KernelError if the method does not support it."""
    parameters: dict[str, Any] = {"approximate": "tanh"} if function.name == "gelu_tanh" else {**function.parameters}
    return MODULES[function.torch_name](**parameters, **method.arguments())


def apply_decisions(outcomes: Outcomes, changes: list[Change]) -> Outcomes:
    """Change all sites that have a decision. The outcome of a site that cannot be changed becomes the reason."""
    applied = dict(outcomes)
    for site, outcome in outcomes.items():
        if isinstance(outcome, Decision):
            try:
                apply(site, outcome, changes)
            except KernelError as error:
                applied[site] = str(error)
    isolate_calls((site for site, outcome in applied.items() if isinstance(outcome, str)), changes)
    return applied


def apply(site: Site, decision: Decision, changes: list[Change]) -> None:
    """Change the places of a site; each change is appended as soon as it is made.

    Raises KernelError, before anything is changed, if the method does not support the site.
    """
    for change in changes_for(site, decision):
        change.apply()
        changes.append(change)


def isolate_calls(sites: Iterable[Site], changes: list[Change]) -> None:
    """Isolate activations that are left alone from enclosing modules that reroute calls of the same function."""
    left_alone = [site for site in sites if isinstance(site, ActivationSite)]
    for rerouted in [change for change in changes if isinstance(change, RerouteCalls)]:
        inside = set(rerouted.place.owner.modules()) - {rerouted.place.owner}
        for site in left_alone:
            if site.function.torch_name != rerouted.place.key:
                continue
            module = site.places[0].owner if isinstance(site, CallSite) else site.original
            around = bool(inside & {site.original, *(place.owner for place in site.places)})
            if around and isinstance(module, nn.Module) and "forward" not in vars(module):
                change = IsolateCalls(module)
                change.apply()
                changes.append(change)


def undo(changes: list[Change]) -> None:
    """Undo all changes, the last first. Raises KernelError afterwards if an object was replaced again since."""
    problems = []
    while changes:
        try:
            changes.pop().undo()
        except KernelError as error:
            problems.append(error)
    if problems:
        raise problems[0]
