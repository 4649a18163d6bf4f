"""Find: the activations of a model, and why each is left alone, if it is."""

from collections.abc import Callable, Iterator

import torch
from torch import nn

from kernels.conversion import recognise
from kernels.conversion.bytecode import functions_called, functions_held
from kernels.conversion.calls import CalledFunction, ReroutedForward
from kernels.conversion.function import DEFAULTS, Function
from kernels.conversion.recognised_numerically import NOT_IN_CATALOGUE
from kernels.conversion.sites import AttributeSite, CallSite, ModuleSite, NestedSite, Place, Site
from kernels.forward_ad.wrapping import Wrapped
from kernels.forwarding import installed_forwards
from kernels.modules import Activation

CONVERTED = "it uses {} already; revert that first"


def find(model: nn.Module, nests: Callable[[nn.Module], bool] = lambda _: False) -> dict[Site, str]:
    """Every activation of a model, modules first, with the reason why it is left alone, or "".

    Parameters
    ----------
    model
        The model.
    nests
        Whether a module whose function is not in the catalogue is one site; else the functions it calls are sites.
    """
    modules: dict[Site, str] = {}
    functions: dict[Site, str] = {}
    for module, names in names_of_modules(model).items():
        parts = [name.rpartition(".") for name in names]
        places = tuple(Place(model.get_submodule(parent), key) for parent, _, key in parts)
        site, reason = _module_site(module, names, places, nests) or (None, "")
        called = dict(_function_sites(names[0], module)) if site is None or reason == NOT_IN_CATALOGUE else {}
        if site is not None and not called:  # else the functions that it calls are its sites
            modules[site] = reason
        functions |= called
    return modules | functions


def names_of_modules(model: nn.Module) -> dict[nn.Module, tuple[str, ...]]:
    """All names of each module, in the model's order."""
    names: dict[nn.Module, tuple[str, ...]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names[module] = (*names.get(module, ()), name)
    return names


def _module_site(
    module: nn.Module, names: tuple[str, ...], places: tuple[Place, ...], nests: Callable[[nn.Module], bool]
) -> tuple[Site, str] | None:
    description = recognise.describe(module)
    if isinstance(module, CalledFunction):
        return ModuleSite(names, description, module.function, None, places), CONVERTED.format(module.method.name)
    if isinstance(module, Activation):
        return ModuleSite(names, description, Function(module.name()), None, places), CONVERTED.format(module.method)
    function = recognise.module(module)
    if function is None:
        return None
    forwards, replaced = installed_forwards(module)
    if function == NOT_IN_CATALOGUE and nests(module):
        wrapped = any(isinstance(forward, Wrapped) for forward in forwards)
        reason = "it runs in nested forward AD already; unwrap it first" * wrapped
        return NestedSite(names, description, None, module, places), reason
    if isinstance(function, str):
        return Site(names, description, None, module, places), function
    reason = ""
    if not names[0]:
        reason = "it is the model itself, which cannot be put in another's place; use the module of kernels"
    elif replaced or any(not isinstance(forward, ReroutedForward) for forward in forwards):
        reason = "its forward was replaced"
    elif any(value for key, value in vars(module).items() if key.endswith("_hooks") and "state_dict" not in key):
        reason = "it has hooks, which would not be called any more"
    return ModuleSite(names, description, function, module, places), reason


def _function_sites(name: str, module: nn.Module) -> Iterator[tuple[Site, str]]:
    prefix = f"{name}." if name else ""
    for key, value in vars(module).items():
        if (function := recognise.function(value)) is not None:
            names, description = (prefix + key,), recognise.describe(value)
            yield AttributeSite(names, description, function, value, (Place(module, key),)), ""
    if type(module).__module__.startswith("torch.nn.") or isinstance(module, torch.jit.ScriptModule | CalledFunction):
        return
    forwards, replaced = installed_forwards(module)
    rerouted: dict[str, CalledFunction] = {}
    for forward in forwards:
        rerouted |= forward.functions if isinstance(forward, ReroutedForward) else {}
    for key, certain in sorted((functions_held(module) | functions_called(module)).items()):
        function, place = Function(key, DEFAULTS[key]), Place(module, key)
        reason = ""
        if key in rerouted:
            reason = CONVERTED.format(rerouted[key].method.name)
        elif replaced or any(isinstance(forward, Wrapped) for forward in forwards):
            reason = "the forward that calls it was replaced by another"
        yield CallSite((f"{prefix}{key}()",), "a call", function, None, (place,), certain), reason
