"""Sites: the layers and activations that `convert` reports, where they are in a model, and how users select them."""

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from kernels.conversion.function import Function
from kernels.errors import KernelError


@dataclass(frozen=True)
class Place:
    """Where an activation is: a submodule or an attribute of `owner`, or a call in its forward."""

    owner: nn.Module
    key: str  # of the submodule or attribute; of a call, the function


@dataclass(frozen=True, eq=False)
class Site:
    """A module or a function in a model. The base class itself is for those that cannot be converted."""

    names: tuple[str, ...]  # all its names in the model
    description: str  # for a report
    function: Function | None  # None: not in the catalogue
    original: Any = None  # the module or function; None for a call, and for a module of this package
    places: tuple[Place, ...] = ()

    @property
    def name(self) -> str:
        """The first name."""
        return self.names[0]

    @property
    def function_name(self) -> str:
        """The function's name in the catalogue, or ""."""
        return self.function.name if self.function else ""

    @property
    def recorded_names(self) -> set[str]:
        """The site's names in `kernels.record`: the module and the function that it calls."""
        called = f".{self.function_name}"
        return {name.removesuffix("()") if name.endswith("()") else name + called for name in self.names}

    def fits(self, pattern: str) -> bool:
        """Whether one of its names, or of the modules around it, matches a pattern with *."""
        return any(fnmatchcase(name, pattern) or within(name, pattern) for name in self.names)


class LayerSite(Site):
    """A layer that stays, but gets a forward that saves less."""


class NestedSite(Site):
    """A module whose function is not in the catalogue: it stays, and runs in nested forward AD."""


@dataclass(frozen=True, eq=False)
class ActivationSite(Site):
    """An activation of the catalogue."""

    function: Function


class ModuleSite(ActivationSite):
    """An activation that is a module."""


class AttributeSite(ActivationSite):
    """An activation that is a function in an attribute."""


@dataclass(frozen=True, eq=False)
class CallSite(ActivationSite):
    """An activation that is a function called in a forward."""

    certain: bool = True  # False: only a run tells whether it is an activation


def within(name: str, module: str) -> bool:
    """Whether a name is that of a module or of something in it."""
    return name == module or name.startswith(module + ".")


def select_sites(
    sites: Mapping[Site, str], include: Iterable[str] | None, exclude: Iterable[str] | None
) -> dict[Site, str]:
    """The sites, each with the reason why it is left alone, or "". Raises KernelError for a pattern without a match."""
    for argument, patterns in (("include", include), ("exclude", exclude)):
        for pattern in patterns or ():
            if not any(site.fits(pattern) for site in sites):
                raise _no_match(argument, pattern, sites)
    return {site: reason or _not_selected(site, include, exclude) for site, reason in sites.items()}


def sites_by_pattern(sites: Collection[Site], patterns: Iterable[str]) -> dict[str, list[Site]]:
    """The sites of each pattern, each site with the first that it matches. Names in `kernels.record` match, too.

    Raises KernelError for a pattern without a match.
    """
    groups: dict[str, list[Site]] = {}
    taken: set[Site] = set()
    for pattern in patterns:
        matching = [site for site in sites if site.fits(pattern) or pattern in site.recorded_names]
        if not matching:
            raise _no_match("coefficients", pattern, sites)
        groups[pattern] = [site for site in matching if site not in taken]
        taken.update(matching)
    return groups


def _no_match(argument: str, pattern: str, sites: Iterable[Site]) -> KernelError:
    names = [name for site in sites for name in site.names if name]
    near = difflib.get_close_matches(pattern, names, 3) or names[:3]
    others = f"; there are {', '.join(near)}{', ...' * (len(names) > len(near))}" if names else ""
    return KernelError(f"{argument} must name activations or modules of the model, got {pattern!r}{others}")


def _not_selected(site: Site, include: Iterable[str] | None, exclude: Iterable[str] | None) -> str:
    if include is not None and not any(map(site.fits, include)):
        return "not included"
    return "excluded" if any(map(site.fits, exclude or ())) else ""
