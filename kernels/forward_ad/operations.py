"""The element-wise operations of PyTorch, and what autograd saves for each: one table for all front ends.

It holds no derivatives. An operation is in the table if each element of its result depends only on the same element of
each operand: then its own backward, given ones, gives the derivative.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels import private

_NAMES = {
    "input": (
        "acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh celu clamp clamp_max clamp_min"
        " clip cos cosh digamma elu erf erfc gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu lgamma log log10"
        " log1p log2 logit logsigmoid log_sigmoid mish pow __pow__ relu6 selu silu sin sinc sinh softplus softshrink"
        " square threshold abs absolute __abs__"
    ),
    "output": "erfinv exp exp2 expit expm1 reciprocal relu rsqrt sigmoid sqrt tan tanh __rpow__",
    "operands": "mul multiply __mul__ __rmul__ maximum minimum",
    "quotient": "div divide true_divide __div__ __truediv__",
    "mask": "dropout masked_fill where",
    "hidden": "softsign tanhshrink __rdiv__ __rtruediv__",
    "nothing": (
        "add __add__ __radd__ sub subtract __sub__ __rsub__ rsub neg negative __neg__ positive __pos__ ceil floor frac"
        " round sign trunc to type float double half bfloat16 type_as _to_copy"
    ),
}
SAVED_KINDS: dict[str, str] = {name: kind for kind, names in _NAMES.items() for name in names.split()}
"""What autograd saves for an operation, by its name: its input; its output; its operands, each for the gradient of the
other; for a quotient also the denominator for its own; a mask; its input and a hidden tensor as large; or nothing."""

_OWNERS = (torch, Tensor, F, torch.special)
FUNCTIONS: dict[Callable[..., Any], str] = {
    getattr(owner, name): kind for name, kind in SAVED_KINDS.items() for owner in _OWNERS if hasattr(owner, name)
}
"""What autograd saves, by function of torch or method of tensors."""

_OPERATORS: dict[Any, str] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "div",
    operator.pow: "pow",
    operator.neg: "neg",
    operator.pos: "positive",
    operator.abs: "abs",
}
_LOOKS = """
    size dim stride numel nelement is_floating_point is_complex is_contiguous data_ptr element_size ndimension
    get_device is_same_size storage_offset untyped_storage has_names is_pinned is_shared is_set_to is_nonzero is_signed
    is_inference is_conj is_neg _is_view detach item tolist requires_grad_ __len__ __hash__ __repr__ __format__
    __deepcopy__ __bool__ __float__ __int__ __delete__ gt ge lt le eq ne greater greater_equal less less_equal equal
    not_equal isnan isinf isfinite isneginf isposinf signbit allclose isclose argmax argmin argsort new_empty new_zeros
    new_ones new_full new_tensor zeros_like ones_like empty_like full_like rand_like randn_like randint_like result_type
"""
LOOKS = frozenset(_LOOKS.split())
"""Names of functions that read a tensor, but neither use it in the graph nor expose its node."""


def out_of_place(function: Any, kwargs: Mapping[str, Any]) -> str | None:
    """What autograd saves for a call of an element-wise function of torch; None for others and for in-place calls."""
    try:
        kind = FUNCTIONS.get(function)
    except TypeError:  # an unhashable function of someone else's
        return None
    return None if kwargs.get("inplace") or kwargs.get("out") is not None else kind


def saved_kind(target: Any) -> str | None:
    """What autograd saves for a function, a method's name, an operator or an overload of aten; None if not listed."""
    if isinstance(target, str):
        return SAVED_KINDS.get(target)
    if isinstance(target, private.OpOverload | private.OpOverloadPacket):
        namespace, _, name = str(target).partition(".")
        return SAVED_KINDS.get(name.partition(".")[0]) if namespace == "aten" else None
    try:
        return FUNCTIONS.get(target) or SAVED_KINDS.get(_OPERATORS.get(target, ""))
    except TypeError:  # an unhashable function of someone else's
        return None
