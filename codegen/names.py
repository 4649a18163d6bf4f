"""Names of PyTorch's operations: which are aliases, and which no element-wise function may use, and why."""

from collections.abc import Iterable
from difflib import get_close_matches

from actfit.fitting.errors import InputError

_REDUCTIONS = """
sum nansum mean nanmean prod var std median nanmedian mode norm max min amax amin aminmax argmax argmin all any
logsumexp softmax log_softmax softmin gumbel_softmax cumsum cumprod cummax cummin logcumsumexp sort argsort topk
kthvalue quantile unique count_nonzero histc bincount layer_norm rms_norm batch_norm group_norm instance_norm
local_response_norm normalize matmul mm bmm dot einsum tensordot linear bilinear glu conv1d conv2d conv3d avg_pool1d
avg_pool2d max_pool1d max_pool2d interpolate cross_entropy mse_loss nll_loss l1_loss
"""
_DROPOUT = "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout"
_CASTS = "float to type type_as double half bfloat16 int long short char byte bool"
_RANDOM = """
feature_dropout native_dropout rrelu bernoulli rand_like randn_like randint_like normal poisson multinomial
"""
REDUCTIONS, DROPOUT = frozenset(_REDUCTIONS.split()), frozenset(_DROPOUT.split())
RANDOM = DROPOUT | frozenset(_RANDOM.split())
CASTS = frozenset(_CASTS.split())
VALUES = {
    "__bool__": "a branch of Python (if, while, and, or, not) on its values; use torch.where",
    "__float__": "a Python number made of it; use torch's function instead of math's",
    "__int__": "a Python number made of it",
    "__index__": "a Python number made of it",
    "__complex__": "a Python number made of it",
    "__format__": "a text made of it",
    "item": "a Python number made of it",
    "tolist": "a Python list made of it",
    "numpy": "an array made of it",
    "__array__": "an array made of it",
    "__len__": "its length",
    "__iter__": "a loop over it",
    "__contains__": "a search in it",
    "__getitem__": "a part of it",
    "__setitem__": "a change of a part of it",
}
_ALIASES = """
absolute=abs arctan=atan clip=clamp expit=sigmoid log_sigmoid=logsigmoid _threshold=threshold negative=neg
pos=positive subtract=sub multiply=mul divide=div true_divide=div truediv=div rtruediv=rdiv radd=add rmul=mul
invert=logical_not bitwise_not=logical_not bitwise_and=logical_and bitwise_or=logical_or and=logical_and or=logical_or
rand=logical_and ror=logical_or less=lt less_equal=le greater=gt greater_equal=ge not_equal=ne
"""
ALIASES = dict(pair.split("=") for pair in _ALIASES.split())


def by_name(name: str) -> str:
    """The tables' name for a name of torch: special_expit is sigmoid, __mul__ is mul."""
    plain = name.removeprefix("special_")
    plain = plain[2:-2] if plain.startswith("__") and plain.endswith("__") else plain
    return ALIASES.get(plain, plain)


def hint(name: str, known: Iterable[str]) -> str:
    """Advice for an unknown name. A name within another is no typing error: logit is not log, nor is acosh cosh."""
    close = [
        candidate
        for candidate in get_close_matches(name, known, 3, 0.8)
        if candidate not in name and name not in candidate
    ]
    return f"did you mean {' or '.join(close)}?" if close else "keep it outside of the function"


def refused(name: str, known: Iterable[str]) -> InputError:
    """Why there is no operation of this name."""
    if name in REDUCTIONS:
        return InputError(
            f"an operation must be element-wise, got {name}, which takes several elements together; use it outside of"
            " the function"
        )
    if name in RANDOM:
        return InputError(
            f"an operation must give the same each time, got {name}, which draws random numbers; use it outside of the"
            " function"
        )
    if name.endswith("_") and not name.startswith("_"):
        return InputError(f"an operation must not change its tensor in place, got {name}; write {name.rstrip('_')}")
    return InputError(f"an operation must be one that is known and element-wise, got {name}; {hint(name, known)}")
