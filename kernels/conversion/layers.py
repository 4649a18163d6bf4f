"""Approximate backprop of whole models: the layers, too, where other methods see activations only."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from kernels.approx_backprop.forwards import Approximate
from kernels.approx_backprop.how import How
from kernels.approx_backprop.layers import RECTIFIERS, kind_of, why_not
from kernels.conversion import recognise
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


def how_of(site: Site, how: How) -> dict[str, Any]:
    """What is put at a site; may say why nothing can be."""
    if site.known is None or site.function in ("relu", "leaky_relu"):
        if isinstance(site.original, RECTIFIERS):
            site.why_not = why_not(site.original)
        if site.kind != "module" or isinstance(site.original, RECTIFIERS):
            return {"method": METHOD, "how": how}
    return {"method": "fewbit", "bits": _bits(site.known, how.bits)}


def _bits(known: Known | None, most: int) -> int:
    """Of f': as many as there are tables for; tables of a function with few slopes are exact with fewer."""
    tables = facts(known.function).TABLES if known is not None else {1: 1}
    return max((bits for bits in tables if bits <= most), default=1)
