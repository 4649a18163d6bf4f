"""Approximate backprop of whole models: the layers, too, where other methods see activations only."""

import inspect
from collections.abc import Iterable
from dataclasses import replace
from types import FunctionType
from typing import Any

from torch import nn

from kernels.approx_backprop.forwards import Approximate
from kernels.approx_backprop.how import How
from kernels.approx_backprop.layers import RECTIFIERS, kind_of, why_not
from kernels.conversion import recognise
from kernels.conversion.calls import changes_in_place
from kernels.conversion.known import Known
from kernels.conversion.sites import Place, Site
from kernels.kernel import facts

METHOD = "approx-backprop"


def layers(model: nn.Module, besides: Iterable[Site]) -> list[Site]:
    """The norms, linear layers, convolutions and the like of a model; not those that are among `besides`."""
    known = {site.original for site in besides if isinstance(site.original, nn.Module)}
    names: dict[nn.Module, list[str]] = {one: [] for one in model.modules() if one not in known and kind_of(one)}
    for name, module in model.named_modules(remove_duplicate=False):
        if module in names:
            names[module].append(name)
    return [_site(module, found) for module, found in names.items()]


def _site(module: nn.Module, names: list[str]) -> Site:
    present = vars(module).get("forward")
    reason = why_not(module)
    if isinstance(present, Approximate):
        reason = f"it goes by {METHOD} already; revert that first"
    elif present is not None:
        reason = "its forward was replaced"
    place = Place(module, names[0])
    return Site(names, "layer", None, recognise.describe(module), [place], reason, original=module)


def how_of(model: nn.Module, site: Site, how: How) -> dict[str, Any]:
    """What is put at a site of a model; may say why nothing can be."""
    bits = _bits(site.known, how.bits) if site.known is not None else 0
    if site.known is None or site.function in ("relu", "leaky_relu"):
        if isinstance(site.original, RECTIFIERS):
            site.why_not = why_not(site.original)
        if site.kind != "module" or isinstance(site.original, RECTIFIERS):
            return {"method": METHOD, "how": replace(how, place=site.name, trusting=trusts(model, site, None))}
    elif how.scheme == "fused" and bits > 1:
        site.why_not = "its derivative in few bits is not exact, as all is by fused"
    return {"method": "fewbit", "bits": bits}


def _bits(known: Known, most: int) -> int:
    """Of f': as many as there are tables for; 1 where that is exact, as of functions made of two slopes."""
    tables: dict[int, int] = facts(known.function).TABLES
    return max(bits for bits in tables.values() if bits <= most)


def seen(model: nn.Module, site: Site, how: dict[str, Any], changed: set[str]) -> dict[str, Any]:
    """The same as `how_of` has it, now that it was seen which sites are given tensors that were changed in place."""
    if "how" not in how:
        return how
    return {**how, "how": replace(how["how"], trusting=trusts(model, site, site.name in changed))}


def trusts(model: nn.Module, site: Site, changed: bool | None) -> bool:
    """Whether under torch.compile a copy that comes along with a site's input may be taken to be as it was made.

    There x += 1 makes another tensor, along with which none comes, but x.add_(1) and then x goes unseen: nobody must do
    that in the forwards around the site, as their code says, or whatever they call. changed: whether in eager the input
    was seen to be changed in place; None where nobody has looked.
    """
    around = [name.split(".") for name in site.names]
    owners = {".".join(path[:depth]) for path in around for depth in range(len(path))}
    found = [_changes(model.get_submodule(owner)) for owner in owners]
    by_sign, by_name = any(sign for sign, _ in found), any(name for _, name in found)
    if changed is None:
        return not by_name
    return not changed or (by_sign and not by_name)


def _changes(module: nn.Module) -> tuple[bool, bool]:
    forward = inspect.unwrap(type(module).forward)
    return changes_in_place(forward.__code__) if isinstance(forward, FunctionType) else (False, False)
