"""Which nodes of an FX graph a region may be made of."""

from typing import Any

from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from kernels.forward_ad.facts import Fact, Facts
from kernels.forward_ad.operations import kept

# Modules without parameters that run one function of the table.
_MODULES = {
    *(nn.CELU, nn.Dropout, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU),
    *(nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign),
    *(nn.Tanh, nn.Tanhshrink, nn.Threshold),
}
# What gives no gradient and is element-wise too, and so may stand in the midst of a region.
_ASIDE = {
    *("detach", "eq", "ge", "gt", "isfinite", "isinf", "isnan", "le", "logical_and", "logical_not", "logical_or"),
    *("lt", "ne"),
}
_SEES = {"retain_grad", "requires_grad_", "grad", "grad_fn", "backward"}  # a tensor's place in the graph of gradients
_HOOKED = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def may_be_member(node: fx.Node, module: fx.GraphModule, facts: Facts) -> bool:
    """Whether a node is element-wise in all that it reads and that needs a gradient, and hides nothing."""
    fact = facts.of[node]
    if fact.value is None or not (fact.needs and fact.varying) or fact.writes:
        return False
    if not _element_wise(node, module) or any(_looks(user, facts.of[user], node) for user in node.users):
        return False
    return all(_alike(facts.of[one].value, fact.value) for one in fact.varying)


def may_be_aside(node: fx.Node, fact: Fact) -> bool:
    """Whether a node gives no gradient, and may be computed within a region."""
    if node.op not in ("call_function", "call_method") or fact.needs or fact.random or fact.writes:
        return False
    return fact.value is not None and (named(node.target) in _ASIDE or kept(node.target) is not None)


def named(target: Any) -> str:
    """The name of what a node calls, without namespace and overload."""
    if isinstance(target, OpOverload):
        return str(target._schema.name).rpartition("::")[2]
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def _element_wise(node: fx.Node, module: fx.GraphModule) -> bool:
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        return type(called) in _MODULES and not any(getattr(called, kind) for kind in _HOOKED)
    return node.op in ("call_function", "call_method") and kept(node.target) is not None


def _looks(user: fx.Node, fact: Fact, node: fx.Node) -> bool:
    """Whether a reader of `node` may see, or change, its gradient, of which a region has but the part from outside."""
    if user.op == "output":  # the caller may ask for the gradient of what is returned
        return len(node.users) > 1
    names = [named(user.target), *(one for one in user.args if isinstance(one, str))]
    return fact.opaque or any("hook" in name or name in _SEES for name in names)


def _alike(one: Tensor | None, other: Tensor) -> bool:
    """Whether both are of floating dtypes, of one shape, as far as is known for good, and on one device."""
    if one is None or not (one.is_floating_point() and other.is_floating_point()) or one.device != other.device:
        return False
    return one.dim() == other.dim() and bool(statically_known_true(sym_eq(tuple(one.shape), tuple(other.shape))))
