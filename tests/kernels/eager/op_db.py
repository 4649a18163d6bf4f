"""PyTorch's own sample inputs of its functions, the calls of each, and gradients of these."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from kernels.eager import calls
from tests.kernels.eager.nets import loss_of

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")
from torch.testing import make_tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, SampleInput, UnaryUfuncInfo

SPARSE = ("sparse_sampled_addmm", "sparse_mm_reduce", "to_sparse")  # all their samples or results are sparse
INFOS = {
    info.formatted_name: info
    for info in op_db
    if info.supports_autograd and torch.float32 in info.dtypes and info.formatted_name not in SPARSE
}

Call = Callable[..., Any]


def wants_gradient(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def samples(info: OpInfo, most: int, dtype: torch.dtype = torch.float32) -> list[SampleInput]:
    """At most `most` evenly spaced samples of the function, dense and with a gradient."""

    def fits(sample: SampleInput) -> bool:
        tensors = [x for x in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(x, Tensor)]
        return any(map(wants_gradient, tensors)) and all(x.layout == torch.strided for x in tensors)

    fitting = [sample for sample in info.sample_inputs("cpu", dtype, requires_grad=True) if fits(sample)]
    return fitting[:: -(-len(fitting) // most)] if fitting else []


def large_samples(info: OpInfo, most: int) -> Iterator[SampleInput]:
    """As `samples`; for element-wise functions, 4096 elements from the whole domain, and from near 0."""
    make = {"device": "cpu", "dtype": torch.float32, "requires_grad": True}
    sources = samples(info, most)
    if isinstance(info, UnaryUfuncInfo | BinaryUfuncInfo):  # samples that differ only in tensors are duplicates
        own = int(isinstance(info, BinaryUfuncInfo))
        sources = list({str((sample.args[own:], sample.kwargs)): sample for sample in sources}.values())
    for sample in sources:
        if isinstance(info, UnaryUfuncInfo):
            low, high = info.domain
            near = -2 if low is None else low
            for ends in ((low, high), (near, near + 4 if high is None else high)):
                x = make_tensor((64, 64), low=ends[0], high=ends[1], **make)
                yield SampleInput(x, args=sample.args, kwargs=sample.kwargs)
        elif isinstance(info, BinaryUfuncInfo):
            for ends in ({}, {"low": -2, "high": 2}):
                x = make_tensor((64, 64), **{**ends, **info.lhs_make_tensor_kwargs}, **make)
                y = make_tensor((64, 64), **{**ends, **info.rhs_make_tensor_kwargs}, **make)
                yield SampleInput(x, args=(y, *sample.args[1:]), kwargs=sample.kwargs)
        else:
            yield sample


def variants(info: OpInfo) -> list[Call]:
    """The function, as a method, in place, as an operator, and by its other names."""
    forms = [info.op, info.method_variant, info.inplace_variant, info.operator_variant, info.inplace_operator_variant]
    for alias in info.aliases:
        forms += [alias.op, alias.method_variant, alias.inplace_variant]
    return [call for call in forms if call is not None]


def is_in_place(info: OpInfo, call: Call) -> bool:
    inplace = [info.inplace_variant, info.inplace_operator_variant, *(alias.inplace_variant for alias in info.aliases)]
    return call in inplace


def by_name(info: OpInfo) -> list[Call]:
    """One variant for each name of the function in our tables."""
    return list(
        {calls.name_of(call): call for call in reversed(variants(info)) if not is_in_place(info, call)}.values()
    )


def stock(call: Call, sample: SampleInput, composed: bool = False) -> Any:
    """As `gradients`, or None where PyTorch refuses: not every sample is for every variant."""
    try:
        return gradients(call, sample, composed=composed)
    except (RuntimeError, TypeError):
        return None


def gradients(
    call: Call, sample: SampleInput, within: AbstractContextManager[Any] | None = None, composed: bool = False
) -> tuple[Any, list[Tensor | None]]:
    """The result of a call, and the gradients of all arguments that require one; none if the result has no gradient.

    The arguments are activations: results of operations outside of `within`.

    Parameters
    ----------
    call, sample
        A function and its arguments.
    within
        The context in which it is called.
    composed
        Whether its arguments are results of products, and its result goes into products.
    """
    torch.manual_seed(3)
    leaves: list[Tensor] = []

    def activation(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        leaf = x.detach().clone()
        if not x.requires_grad:
            return leaf
        leaves.append(leaf.requires_grad_())
        return leaf.clone()

    def each(function: Callable[[Tensor], Tensor], values: Any) -> Any:
        return tree_map(lambda x: function(x) if composed and wants_gradient(x) else x, values)

    args, kwargs = tree_map(activation, ([sample.input, *sample.args], sample.kwargs))
    with within or nullcontext():
        args, kwargs = each(lambda x: x * 1, (args, kwargs))
        result = each(lambda y: y * (y if y.is_complex() else F.relu(y)), call(*args, **kwargs))
    loss = loss_of(result)
    if not loss.requires_grad:
        return result, []
    return result, list(torch.autograd.grad(loss, leaves, allow_unused=True))
