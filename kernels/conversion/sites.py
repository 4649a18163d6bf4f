"""The places of a model where an activation stands, and how one is changed and put back."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from kernels import modules
from kernels.conversion import recognise
from kernels.conversion.by_value import OWN
from kernels.conversion.calls import Act, Held, Rerouted, called
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

    names: all there are in the model. known: what it computes, or None. was: what stands there. why_not: why it is to
    be left alone, if it is. original: the module or function that stands there. placed: the module put in its stead.
    """

    names: list[str]
    kind: str  # "module", "attribute" or "call"
    known: Known | None
    was: str
    places: list[Place] = field(default_factory=list)
    why_not: str = ""
    original: Any = None
    placed: nn.Module | None = None

    @property
    def name(self) -> str:
        """The first."""
        return self.names[0]

    @property
    def function(self) -> str:
        """The catalogue's name."""
        return self.known.function if self.known else ""

    def called(self, pattern: str) -> bool:
        """Whether one of its names, or of the modules around it, fits a pattern with *."""
        return any(fnmatchcase(name, pattern) or within(name, pattern) for name in self.names)


def within(name: str, module: str) -> bool:
    """Whether a name is that of a module or of something in it."""
    return name == module or name.startswith(module + ".")


def find(model: nn.Module) -> list[Site]:
    """Every activation of a model, in the order of its modules."""
    found: dict[Any, Site] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        parent, _, key = name.rpartition(".")
        place = Place(model.get_submodule(parent), key)
        if module in found:
            found[module].places.append(place)
            found[module].names.append(name)
        elif (site := _of_module(name, module)) is not None:
            site.places.append(place)
            found[module] = site
    for name, module in model.named_modules():
        if module not in found or found[module].why_not == OWN:
            functions = {(module, site.name): site for site in _functions(name, module)}
            if functions:
                found.pop(module, None)  # it is known by what it calls
            found |= functions
    return list(found.values())


def _of_module(name: str, module: nn.Module) -> Site | None:
    was = recognise.describe(module)
    if isinstance(module, Remembering | Act):
        known = module.known if isinstance(module, Act) else Known(module.name())
        method = module.how["method"] if isinstance(module, Act) else module.method
        return Site([name], "module", known, was, why_not=f"it remembers by {method} already; revert that first")
    what = recognise.module(module)
    if what is None:
        return None
    if isinstance(what, str):
        return Site([name], "module", None, was, why_not=what, original=module)
    present = vars(module).get("forward")
    why_not = ""
    if not name:
        why_not = "it is the model itself, which cannot be put in another's place; use the module of kernels"
    elif present is not None and not isinstance(present, Rerouted):
        why_not = "its forward was replaced"
    elif any(them for key, them in vars(module).items() if key.endswith("_hooks") and "state_dict" not in key):
        why_not = "it has hooks, which would not be called any more"
    return Site([name], "module", what, was, why_not=why_not, original=module)


def _functions(name: str, module: nn.Module) -> Iterator[Site]:
    prefix = f"{name}." if name else ""
    for key, value in vars(module).items():
        if (known := recognise.function(value)) is not None:
            was = recognise.describe(value)
            yield Site([prefix + key], "attribute", known, was, [Place(module, key)], original=value)
    if type(module).__module__.startswith("torch.nn.") or isinstance(module, torch.jit.ScriptModule | Act):
        return
    present = vars(module).get("forward")
    for function in sorted(called(module)):
        known = Known(function, DEFAULTS[function])
        site = Site([f"{prefix}{function}()"], "call", known, "a call", [Place(module, function)])
        if isinstance(present, Rerouted) and function in present.acts:
            site.why_not = f"it remembers by {present.acts[function].how['method']} already; revert that first"
        elif present is not None and not isinstance(present, Rerouted):
            site.why_not = "the forward that calls it was replaced by another"
        yield site


def chosen(sites: Sequence[Site], include: Iterable[str] | None, exclude: Iterable[str] | None) -> list[Site]:
    """The sites that are to be converted; others get the reason. Raises KernelError for a pattern that fits none."""
    for what, patterns in (("include", include), ("exclude", exclude)):
        for pattern in patterns or ():
            if not any(site.called(pattern) for site in sites):
                names = [name for site in sites for name in site.names]
                near = difflib.get_close_matches(pattern, names, 3) or names[:3]
                others = f"; there are {', '.join(near)}{', ...' * (len(names) > len(near))}" if names else ""
                raise KernelError(
                    f"{what} must name activations of the model or modules around them, got {pattern!r}{others}"
                )
    for site in sites:
        if include is not None and not any(site.called(one) for one in include):
            site.why_not = site.why_not or "not included"
        if any(site.called(one) for one in exclude or ()):
            site.why_not = site.why_not or "excluded"
    return [site for site in sites if not site.why_not]


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


def put(site: Site, changes: list[Change], **how: Any) -> None:
    """Put an activation that remembers so at all places of a site; each change is appended as soon as it is made.

    Raises KernelError, before anything is changed, for what cannot be done.
    """
    if site.known is None:
        raise KernelError(site.why_not)
    if site.kind == "module":
        site.placed = build(site.known, **how)
        site.placed.training = site.original.training
    elif site.kind == "attribute":
        site.placed = Held(site.original, site.known, **how)
    else:
        site.placed = Act(site.known, **how)
    for place in site.places:
        if isinstance(site.placed, Act) and site.kind == "call":
            _reroute(place, site.placed)
        else:
            setattr(place.owner, place.key, site.placed)
        changes.append(Change(place, site.kind, site.original, site.placed))


def _reroute(place: Place, act: Act) -> None:
    present = vars(place.owner).get("forward")
    if present is None:
        present = Rerouted(place.owner, {})
        place.owner.forward = present
    present.acts[place.key] = act


def fence(sites: Iterable[Site]) -> list[Change]:
    """Keep calls of activations that are left alone from those who reroute calls of the same function around them."""
    changes = []
    for site in sites:
        inner = site.places[0].owner if site.kind == "call" else site.original
        if isinstance(inner, nn.Module) and "forward" not in vars(inner):
            inner.forward = Rerouted(inner, {})
            changes.append(Change(Place(inner, ""), "call", None, None))
    return changes


def build(known: Known, **how: Any) -> Remembering:
    """A module of ours that computes it. Raises KernelError for what cannot be done."""
    if known.function == "gelu_tanh":
        return MODULES["gelu"](approximate="tanh", **how)
    params: dict[str, Any] = dict(known.params)
    return MODULES[known.function](**params, **how)
