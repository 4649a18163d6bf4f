"""What is known of PyTorch's functions, by their names: an operator, a method and a function of one name are alike."""

from collections.abc import Callable
from typing import Any

# Cheap functions of tensors and numbers that give the same again, element by element or, as norms, row by row.
REPEATED = frozenset(
    [
        *("add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "neg", "square", "pow", "rsqrt"),
        *("gelu", "silu", "mish", "sigmoid", "tanh", "softplus", "elu", "selu", "celu", "logsigmoid", "softsign"),
        *("relu", "leaky_relu", "relu6", "hardtanh", "hardswish", "hardsigmoid", "glu"),
        *("to", "float", "half", "bfloat16", "type", "type_as", "contiguous", "clone", "reshape", "flatten"),
        *("layer_norm", "rms_norm", "group_norm", "batch_norm"),
    ]
)
REDUCTIONS = frozenset(
    [
        *("mean", "sum", "var", "std", "var_mean", "std_mean", "amax", "amin", "max", "min"),
        *("norm", "linalg_vector_norm", "vector_norm", "logsumexp"),
    ]
)
# Their backward divides by what they save, or takes the exponential of a difference with it.
POLES = frozenset(
    [
        *("div", "truediv", "rdiv", "rtruediv", "reciprocal", "sqrt", "rsqrt", "log", "log2", "log10", "log1p"),
        *("asin", "acos", "acosh", "atanh", "erfinv", "std", "norm", "linalg_vector_norm", "vector_norm"),
        *("normalize", "cosine_similarity", "cdist", "pairwise_distance", "logsumexp"),
    ]
)
# Their derivative jumps at a number that what they save is compared with.
STEPS = frozenset(
    [
        *("abs", "sign", "clamp", "clip", "clamp_min", "clamp_max", "maximum", "minimum", "max", "min", "amax", "amin"),
        *("hardtanh", "relu6", "hardswish", "hardsigmoid", "hardshrink", "softshrink", "threshold", "prelu", "rrelu"),
        *("selu", "median", "sort", "topk", "cummax", "cummin", "fmod"),
        *("huber_loss", "smooth_l1_loss", "l1_loss"),
    ]
)
# Their derivative is one number above 0 and another one below: a bit says which.
SIGNS = frozenset(["relu", "leaky_relu"])
# They save their result.
RESULTS = frozenset(["relu", "leaky_relu", "tanh", "sigmoid"])
# Their backward wants to know of their input no more than its shape.
SHAPE_ONLY = frozenset(
    [
        *("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d"),
        *("nll_loss", "nll_loss2d"),
    ]
)
# They save logarithms of probabilities, of which backward takes the exponential.
LOG_PROBABILITIES = frozenset(["log_softmax", "cross_entropy", "cross_entropy_loss"])
DROPOUTS = frozenset(["dropout", "feature_dropout", "dropout1d", "dropout2d", "dropout3d"])
ATTENTION = "scaled_dot_product_attention"

IN_PLACE = {"iadd": "add", "isub": "sub", "imul": "mul", "idiv": "div", "itruediv": "div", "ipow": "pow"}


def name_of(function: Callable[..., Any]) -> str:
    """Without underscores around it: of `x.mul(y)`, `x * y`, `x.mul_(y)` and `x *= y` it is "mul"."""
    name: str = getattr(function, "__name__", "").strip("_")
    return IN_PLACE.get(name, name)


def is_in_place(function: Callable[..., Any]) -> bool:
    """Whether, by its name, a function writes its result into its first argument."""
    name: str = getattr(function, "__name__", "")
    return name.strip("_") in IN_PLACE or (name.endswith("_") and not name.endswith("__"))


def needs_exact(name: str, first: bool) -> bool:
    """Whether backward needs what a function saves exactly; first: it is the first argument."""
    if name in ("div", "truediv"):  # by which another is divided
        return not first
    return name in POLES or name in STEPS
