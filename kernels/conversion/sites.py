"""The places of a model where an activation stands."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from kernels.conversion import recognise
from kernels.conversion.by_value import OWN
from kernels.conversion.calls import Act, Rerouted
from kernels.conversion.known import DEFAULTS, Known
from kernels.conversion.named import called, held
from kernels.errors import KernelError
from kernels.forward_ad.wrapping import Wrapped
from kernels.forwarding import standing
from kernels.modules import Remembering


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
    guessed: whether it is a call that only may be that of an activation, which is told when it runs.
    An own one is a module that computes what is not in the catalogue: it stays, and runs in nested forward AD.
    """

    names: list[str]
    kind: str  # "module", "own", "attribute" or "call"
    known: Known | None
    was: str
    places: list[Place] = field(default_factory=list)
    why_not: str = ""
    original: Any = None
    placed: nn.Module | None = None
    guessed: bool = False

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


def find(model: nn.Module, own: Callable[[nn.Module], bool] = lambda _: False) -> list[Site]:
    """Every activation of a model, in the order of its modules.

    own: whether a module that computes a function of its own is one, rather than the functions called in it.
    """
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
            if site.why_not == OWN and own(module):
                wrapped = any(isinstance(one, Wrapped) for one in standing(module)[0])
                site.kind, site.why_not = "own", "it runs in nested forward AD already; unwrap it first" * wrapped
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
        method = module.method.name if isinstance(module, Act) else module.method
        return Site([name], "module", known, was, why_not=f"it remembers by {method} already; revert that first")
    what = recognise.module(module)
    if what is None:
        return None
    if isinstance(what, str):
        return Site([name], "module", None, was, why_not=what, original=module)
    forwards, replaced = standing(module)
    why_not = ""
    if not name:
        why_not = "it is the model itself, which cannot be put in another's place; use the module of kernels"
    elif replaced or any(not isinstance(one, Rerouted) for one in forwards):
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
    forwards, replaced = standing(module)
    acts = {key: act for one in forwards if isinstance(one, Rerouted) for key, act in one.acts.items()}
    for function, sure in sorted((held(module) | called(module)).items()):
        known, place = Known(function, DEFAULTS[function]), Place(module, function)
        site = Site([f"{prefix}{function}()"], "call", known, "a call", [place], guessed=not sure)
        if function in acts:
            site.why_not = f"it remembers by {acts[function].method.name} already; revert that first"
        elif replaced or any(isinstance(one, Wrapped) for one in forwards):
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
