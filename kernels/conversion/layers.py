"""Approximate backprop of whole models, which converts layers as well as activations."""

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from kernels.approx_backprop.forwards import Approximate
from kernels.approx_backprop.layers import RECTIFIERS, kind_of, why_not
from kernels.approx_backprop.written_norms import is_like_a_norm
from kernels.conversion import recognise
from kernels.conversion.find import names_of_modules
from kernels.conversion.function import DEFAULTS, Function
from kernels.conversion.sites import LayerSite, ModuleSite, Site
from kernels.forwarding import installed_forwards
from kernels.methods.compressed import Compressed
from kernels.methods.few_bit import FewBit
from kernels.methods.functions import function_info
from kernels.methods.method import Method

# Layers without a rule; they are left unchanged.
WITHOUT_RULE = (
    nn.MultiheadAttention,
    nn.GroupNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.LocalResponseNorm,
    nn.Bilinear,
    nn.AdaptiveMaxPool2d,
)


def with_layers(model: nn.Module, activations: Mapping[Site, str]) -> dict[Site, str]:
    """The activations of a model, and its norms, linear layers, convolutions and the like. ReLUs count as layers."""
    sites = {site: reason for site, reason in activations.items() if not isinstance(site.original, RECTIFIERS)}
    modules = {site.original for site in sites if isinstance(site.original, nn.Module)}
    for module, names in names_of_modules(model).items():
        if module not in modules and (kind_of(module) or isinstance(module, WITHOUT_RULE) or is_like_a_norm(module)):
            sites[LayerSite(names, recognise.describe(module), None, module)] = _why_left_alone(module)
    return sites


def _why_left_alone(module: nn.Module) -> str:
    forwards, replaced = installed_forwards(module)
    if isinstance(module, WITHOUT_RULE):
        return "it is not one of the layers that can save few bits"
    if any(isinstance(forward, Approximate) for forward in forwards):
        return f"it goes by {Compressed.name} already; revert that first"
    return "its forward was replaced" if replaced else why_not(module)


def is_written_norm(module: nn.Module) -> bool:
    """Whether a converted layer is a norm written out in Python."""
    forwards, _ = installed_forwards(module)
    return any(forward.options.kind == "written" for forward in forwards if isinstance(forward, Approximate))


def decide_by_bits(site: Site, method: Compressed) -> Method | str:
    """The method of a site with approx-backprop, decided without a run of the model; or why there is none."""
    function, is_module = site.function, isinstance(site, ModuleSite)
    if function is None or (function.name in ("relu", "leaky_relu") and not is_module):
        return method
    bits = _table_bits(function, method.bits)
    if bits > 1 and not is_module and function.parameters:  # a call may have parameters other than the table's
        bits = 0
    if method.exact and bits != 1:
        return "its derivative in few bits is not exact, as all is by fused"
    return FewBit(bits) if bits else replace(method, scheme="group", clip=None)


def _table_bits(function: Function, bits: int) -> int:
    """Bits of the few-bit table: as asked for, or fewer if f' needs no more; 0: f' is saved in groups."""
    info = function_info(function.name)
    if not info.bounded_derivative or dict(function.parameters) != DEFAULTS[function.name]:
        return 0
    return info.tables[bits]
