"""What stands where in a model: the layers and activations that `convert` reports, and which of them users select."""

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
    """Where an activation stands: as a submodule, in a plain attribute, or called in the forward of `owner`."""

    owner: nn.Module
    key: str  # of the submodule or attribute; of a call, the function


@dataclass(frozen=True, eq=False)
class Site:
    """A module or a function, wherever it stands in a model; of this very class, one that cannot be converted."""

    names: tuple[str, ...]  # all that it has in the model
    description: str  # for a report
    function: Function | None  # None: not in the catalogue
    original: Any = None  # the module or function that stands there; None for a call, and for a module of ours
    places: tuple[Place, ...] = ()

    @property
    def name(self) -> str:
        """The first."""
        return self.names[0]

    @property
    def function_name(self) -> str:
        """The catalogue's, or ""."""
        return self.function.name if self.function else ""

    @property
    def recorded_names(self) -> set[str]:
        """As `kernels.record` names what the site is given: the module, and the function that it calls."""
        called = f".{self.function_name}"
        return {name.removesuffix("()") if name.endswith("()") else name + called for name in self.names}

    def fits(self, pattern: str) -> bool:
        """Whether one of its names, or of the modules around it, fits a pattern with *."""
        return any(fnmatchcase(name, pattern) or within(name, pattern) for name in self.names)


class LayerSite(Site):
    """A layer that stays, with a forward that saves less."""


class NestedSite(Site):
    """A module with a function of its own, which is not in the catalogue: it stays, and runs in nested forward AD."""


@dataclass(frozen=True, eq=False)
class ActivationSite(Site):
    """An activation of the catalogue."""

    function: Function


class ModuleSite(ActivationSite):
    """One that is a module."""


class AttributeSite(ActivationSite):
    """One that is a function in an attribute."""


@dataclass(frozen=True, eq=False)
class CallSite(ActivationSite):
    """One that is a function called in a forward."""

    certain: bool = True  # False: only a run tells whether it is an activation


def within(name: str, module: str) -> bool:
    """Whether a name is that of a module or of something in it."""
    return name == module or name.startswith(module + ".")


def select_sites(
    sites: Mapping[Site, str], include: Iterable[str] | None, exclude: Iterable[str] | None
) -> dict[Site, str]:
    """The sites, each with why it is left alone, or "". Raises KernelError for a pattern that fits none."""
    for argument, patterns in (("include", include), ("exclude", exclude)):
        for pattern in patterns or ():
            if not any(site.fits(pattern) for site in sites):
                raise _fits_none(argument, pattern, sites)
    return {site: reason or _not_selected(site, include, exclude) for site, reason in sites.items()}


def share_out(sites: Collection[Site], patterns: Iterable[str]) -> dict[str, list[Site]]:
    """The sites of each pattern; one that fits several goes to the first. Names as `kernels.record` has them fit too.

    Raises KernelError for a pattern that fits none.
    """
    shares: dict[str, list[Site]] = {}
    taken: set[Site] = set()
    for pattern in patterns:
        fitting = [site for site in sites if site.fits(pattern) or pattern in site.recorded_names]
        if not fitting:
            raise _fits_none("coefficients", pattern, sites)
        shares[pattern] = [site for site in fitting if site not in taken]
        taken.update(fitting)
    return shares


def _fits_none(argument: str, pattern: str, sites: Iterable[Site]) -> KernelError:
    names = [name for site in sites for name in site.names if name]
    near = difflib.get_close_matches(pattern, names, 3) or names[:3]
    others = f"; there are {', '.join(near)}{', ...' * (len(names) > len(near))}" if names else ""
    return KernelError(f"{argument} must name activations or modules of the model, got {pattern!r}{others}")


def _not_selected(site: Site, include: Iterable[str] | None, exclude: Iterable[str] | None) -> str:
    if include is not None and not any(map(site.fits, include)):
        return "not included"
    return "excluded" if any(map(site.fits, exclude or ())) else ""
