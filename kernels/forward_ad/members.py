"""Which nodes of an FX graph may belong to a region."""

from typing import Any

from torch import Tensor, fx, nn
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from kernels import private
from kernels.forward_ad.observations import Observation, Observations
from kernels.forward_ad.operations import saved_kind

# Modules without parameters that run one function of the table.
_MODULES = {
    *(nn.CELU, nn.Dropout, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU),
    *(nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign),
    *(nn.Tanh, nn.Tanhshrink, nn.Threshold),
}
# Element-wise functions without a gradient, which may stand within a region.
_ASIDE = {
    *("detach", "eq", "ge", "gt", "isfinite", "isinf", "isnan", "le", "logical_and", "logical_not", "logical_or"),
    *("lt", "ne"),
}
_SEES = {"retain_grad", "requires_grad_", "grad", "grad_fn", "backward"}  # a tensor's place in the graph of gradients
_HOOKED = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def may_be_member(node: fx.Node, module: fx.GraphModule, observations: Observations) -> bool:
    """Whether a node is element-wise in all operands that need a gradient, writes nothing and has harmless readers."""
    observation = observations.of[node]
    if observation.value is None or not (observation.requires_grad and observation.varying) or observation.writes:
        return False
    if not _element_wise(node, module) or any(_sees_gradient(user, observations.of[user], node) for user in node.users):
        return False
    return all(_alike(observations.of[read].value, observation.value) for read in observation.varying)


def may_be_aside(node: fx.Node, observation: Observation) -> bool:
    """Whether a node has no gradient and may be computed within a region."""
    if (
        node.op not in ("call_function", "call_method")
        or observation.requires_grad
        or observation.random
        or observation.writes
    ):
        return False
    return observation.value is not None and (name_of(node.target) in _ASIDE or saved_kind(node.target) is not None)


def name_of(target: Any) -> str:
    """The name of what a node calls, without namespace and overload."""
    if isinstance(target, private.OpOverload):
        return str(target._schema.name).rpartition("::")[2]
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def _element_wise(node: fx.Node, module: fx.GraphModule) -> bool:
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        return type(called) in _MODULES and not any(getattr(called, kind) for kind in _HOOKED)
    return node.op in ("call_function", "call_method") and saved_kind(node.target) is not None


def _sees_gradient(user: fx.Node, observation: Observation, node: fx.Node) -> bool:
    """Whether a reader of `node` may see or change its gradient: in a region that has only the part from outside."""
    if user.op == "output":  # the caller may ask for the gradient of what is returned
        return len(node.users) > 1
    names = [name_of(user.target), *(argument for argument in user.args if isinstance(argument, str))]
    return observation.opaque or any("hook" in name or name in _SEES for name in names)


def _alike(first: Tensor | None, second: Tensor) -> bool:
    """Whether both have floating dtypes, the same shape for all sizes of the graph, and the same device."""
    if first is None or not (first.is_floating_point() and second.is_floating_point()) or first.device != second.device:
        return False
    return first.dim() == second.dim() and bool(statically_known_true(sym_eq(tuple(first.shape), tuple(second.shape))))
