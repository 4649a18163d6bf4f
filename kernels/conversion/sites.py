"""The places of a model where an activation stands, and how one is changed and put back."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from kernels import modules
from kernels.choice import choose
from kernels.conversion import recognise
from kernels.conversion.by_value import OWN
from kernels.conversion.calls import Act, Rerouted, called
from kernels.conversion.known import DEFAULTS, Known
from kernels.errors import KernelError
from kernels.modules import Remembering

# Ours by the catalogue's name; GELU has two, and goes by the first.
MODULES: dict[str, type[Remembering]] = {
    getattr(one, "function", "gelu"): one
    for one in vars(modules).values()
    if isinstance(one, type) and issubclass(one, Remembering) and one is not Remembering
}


@dataclass(frozen=True)
class Place:
    """Where an activation stands: as a submodule, in a plain attribute, or called in the forward of `owner`."""

    owner: nn.Module
    key: str  # of the submodule or attribute; of a call, the function


@dataclass
class Site:
    """An activation of a model: one object, or one function called in a forward, wherever it stands.

    name: the first of its names in the model. function: in the catalogue, or "" where it is none. was: what stands
    there. why_not: why it is to be left alone, if it is.
    """

    name: str
    kind: str  # "module", "attribute" or "call"
    known: Known | None
    was: str
    places: list[Place] = field(default_factory=list)
    why_not: str = ""
    module: nn.Module | None = None  # the original, of a module; the one put there, of the others

    @property
    def function(self) -> str:
        """The catalogue's name."""
        return self.known.function if self.known else ""

    def stands(self) -> nn.Module:
        """The submodule that stands there now."""
        return self.places[0].owner.get_submodule(self.places[0].key)


def find(model: nn.Module) -> list[Site]:
    """Every activation of a model, in the order of its modules."""
    found: dict[Any, Site] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        parent, _, key = name.rpartition(".")
        what = recognise.module(module) if module not in found else None
        if module in found:
            found[module].places.append(Place(model.get_submodule(parent), key))
        elif isinstance(module, Remembering):
            why_not = f"it remembers by {module.method} already"
            found[module] = Site(name, "module", Known(module.name()), recognise.describe(module), why_not=why_not)
        elif what is not None:
            known = what if isinstance(what, Known) else None
            why_not = "" if isinstance(what, Known) else what
            if not name and known:
                why_not = "it is the model itself, which cannot be put in another's place; use the module of kernels"
            place = Place(model.get_submodule(parent), key)
            found[module] = Site(name, "module", known, recognise.describe(module), [place], why_not, module)
    for name, module in model.named_modules():
        if module not in found or found[module].why_not == OWN:
            functions = {(module, site.name): site for site in _functions(name, module)}
            if functions:
                found.pop(module, None)  # it is known by what it calls
            found |= functions
    return list(found.values())


def _functions(name: str, module: nn.Module) -> Iterator[Site]:
    for key, value in vars(module).items():
        if (known := recognise.function(value)) is not None:
            full = f"{name}.{key}" if name else key
            yield Site(full, "attribute", known, recognise.describe(value), [Place(module, key)])
    if type(module).__module__.startswith("torch.nn."):
        return
    present = vars(module).get("forward")
    for function in sorted(called(module)):
        site = Site(
            f"{name}.{function}()" if name else f"{function}()",
            "call",
            Known(function),
            f"call in {recognise.describe(module)}",
        )
        site.places.append(Place(module, function))
        if isinstance(present, Rerouted) and function in present.acts:
            site.why_not = f"it remembers by {present.acts[function].how['method']} already"
        elif present is not None and not isinstance(present, Rerouted):
            site.why_not = "the forward that calls it was replaced by another"
        yield site


def chosen(sites: Iterable[Site], include: Iterable[str] | None, exclude: Iterable[str] | None) -> list[Site]:
    """The sites that are to be converted, by name; others get the reason. Raises KernelError for a pattern in vain."""
    sites = list(sites)
    for what, patterns in (("include", include), ("exclude", exclude)):
        for pattern in patterns or ():
            if not any(_matches(site.name, pattern) for site in sites):
                names = ", ".join(site.name for site in sites[:3]) or "none"
                raise KernelError(f"{what} must name sites of the model, got {pattern!r}; there are {names}, ...")
    for site in sites:
        if include is not None and not any(_matches(site.name, one) for one in include):
            site.why_not = site.why_not or "not included"
        if any(_matches(site.name, one) for one in exclude or ()):
            site.why_not = site.why_not or "excluded"
    return [site for site in sites if not site.why_not]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.startswith(pattern + ".")


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
        if self.kind == "call":
            present = vars(owner).get("forward")
            if not isinstance(present, Rerouted) or present.acts.get(key) is not self.new:
                raise KernelError(f"{key}() must be as convert left it, but its forward was replaced since")
            present.acts.pop(key, None)
            if not present.acts:
                del vars(owner)["forward"]
            return
        if owner._modules.get(key) is not self.new:
            raise KernelError(f"{key} must be as convert left it, but was replaced since")
        if self.kind == "attribute":
            delattr(owner, key)
        setattr(owner, key, self.old)


def put(site: Site, **how: Any) -> list[Change]:
    """Put an activation that remembers so at all places of a site. Raises KernelError for what cannot be done."""
    known = site.known
    if known is None:
        raise KernelError(site.why_not)
    if site.kind == "call":
        choose(known.function, DEFAULTS[known.function], **how)  # what a call's own parameters lack is stock
        return [_reroute(site, place, Act(**how)) for place in site.places]
    new = build(known, **how)
    old = site.module if site.kind == "module" else vars(site.places[0].owner)[site.places[0].key]
    if site.module is not None:
        new.train(site.module.training)
    for place in site.places:
        setattr(place.owner, place.key, new)
    if site.kind == "attribute":
        site.module = new
    return [Change(place, site.kind, old, new) for place in site.places]


def _reroute(site: Site, place: Place, act: Act) -> Change:
    present = vars(place.owner).get("forward")
    if present is None:
        present = Rerouted(place.owner, {})
        place.owner.forward = present
    present.acts[place.key] = act
    site.module = act
    return Change(place, "call", None, act)


def fence(sites: Iterable[Site]) -> list[Change]:
    """Keep calls of activations that are left alone from those who reroute calls of the same function around them."""
    changes = []
    for site in sites:
        inner = site.places[0].owner if site.kind == "call" else site.module
        if inner is not None and "forward" not in vars(inner) and not isinstance(inner, Act | Remembering):
            inner.forward = Rerouted(inner, {})
            changes.append(Change(Place(inner, ""), "call", None, None))
    return changes


def build(known: Known, **how: Any) -> Remembering:
    """A module of ours that computes it. Raises KernelError for what cannot be done."""
    if known.function == "gelu_tanh":
        return MODULES["gelu"](approximate="tanh", **how)
    params: dict[str, Any] = dict(known.params)
    return MODULES[known.function](**params, **how)
