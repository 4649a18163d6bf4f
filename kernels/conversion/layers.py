"""Approximate backprop of whole models: the layers, too, where other methods see activations only."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm

from kernels.approx_backprop.forwards import Approximate
from kernels.approx_backprop.layers import RECTIFIERS, kind_of, why_not
from kernels.approx_backprop.written_norms import is_like_a_norm
from kernels.conversion import recognise
from kernels.conversion.known import DEFAULTS, Known
from kernels.conversion.sites import Place, Site
from kernels.forwarding import standing
from kernels.methods.compressed import Compressed
from kernels.methods.few_bit import FewBit
from kernels.methods.functions import function_info
from kernels.methods.method import Method

OTHERWISE = (
    "with these inputs it is not called by one tensor alone: what it is given besides is not known, as of a gate"
)
# What keeps whole tensors, and goes on to.
OTHERS = (nn.MultiheadAttention, nn.GroupNorm, _InstanceNorm, nn.LocalResponseNorm, nn.Bilinear, nn.AdaptiveMaxPool2d)


def with_layers(model: nn.Module, activations: Sequence[Site]) -> list[Site]:
    """The activations of a model, and its norms, linear layers, convolutions and the like; ReLUs are among these."""
    sites = [site for site in activations if not isinstance(site.original, RECTIFIERS)]
    known = {site.original for site in sites if isinstance(site.original, nn.Module)}
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if module in names:
            names[module].append(name)
        elif module not in known and (kind_of(module) or isinstance(module, OTHERS) or is_like_a_norm(module)):
            names[module] = [name]
    return sites + [_site(module, found) for module, found in names.items()]


def _site(module: nn.Module, names: list[str]) -> Site:
    forwards, replaced = standing(module)
    reason = why_not(module)
    if isinstance(module, OTHERS):
        reason = "it is not one of the layers that can keep few bits"
    elif any(isinstance(one, Approximate) for one in forwards):
        reason = f"it goes by {Compressed.name} already; revert that first"
    elif replaced:
        reason = "its forward was replaced"
    return Site(names, "layer", None, recognise.describe(module), [Place(module, names[0])], reason, original=module)


def is_written(module: nn.Module) -> bool:
    """Whether a converted layer is a norm that is written out."""
    return any(one.options.kind == "written" for one in standing(module)[0] if isinstance(one, Approximate))


def method_at(site: Site, method: Compressed) -> Method:
    """The method of a site, as long as nobody has looked at the model; may say why nothing can be."""
    if site.known is None or (site.function in ("relu", "leaky_relu") and site.kind != "module"):
        return method
    bits = _table(site.known, method.bits)
    if site.kind != "module" and site.function == "gelu":  # by one name in torch: what is called may be gelu_tanh
        bits = min(bits, _table(Known("gelu_tanh"), method.bits))
    if method.exact and bits != 1:
        site.why_not = "its derivative in few bits is not exact, as all is by fused"
    return FewBit(bits) if bits else replace(method, scheme="group", clip=None)


def _table(known: Known, bits: int) -> int:
    """Bits of a few-bit table that is as good as was asked for; 0 where f' is to be saved by groups.

    That is one for just as many bits, or one that tells all values f' has in fewer, where there are no more than that.
    """
    info = function_info(known.function)
    if not info.bounded_derivative or dict(known.params) != DEFAULTS[known.function]:
        return 0
    most = max(info.tables)
    return info.tables[bits] if bits in info.tables else info.tables[most] * (info.tables[most] < most)
