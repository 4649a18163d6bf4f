"""Properties of PyTorch's functions by name; an operator, a method and a function of the same name are alike."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

# Cheap, deterministic functions of tensors and numbers, element by element or, as norms, row by row.
REPEATED = frozenset(
    [
        *("add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "neg", "square", "pow"),
        *("gelu", "silu", "mish", "sigmoid", "tanh", "softplus", "elu", "selu", "celu", "softsign"),
        *("relu", "leaky_relu", "relu6", "hardtanh", "hardswish", "hardsigmoid", "glu"),
        *("clamp", "clip", "clamp_min", "clamp_max", "where", "masked_fill", "normalize"),
        *("to", "float", "half", "bfloat16", "type", "type_as", "contiguous", "clone", "reshape", "flatten"),
        *("layer_norm", "rms_norm", "group_norm", "batch_norm"),
    ]
)
# Each element of their result is made of one element of each argument, unless these have other shapes.
ELEMENT_WISE = (REPEATED | {"dropped"}) - {
    *("glu", "normalize", "contiguous", "clone", "reshape", "flatten"),
    *("layer_norm", "rms_norm", "group_norm", "batch_norm"),
}
REDUCTIONS = frozenset(
    [
        *("mean", "sum", "var", "std", "var_mean", "std_mean", "amax", "amin", "max", "min"),
        *("norm", "linalg_vector_norm", "vector_norm", "logsumexp"),
    ]
)
# Functions whose result is a statistic if their argument is.
OF_STATISTICS = REPEATED | {"sqrt", "rsqrt", "reciprocal", "rdiv", "rtruediv", "root"}
# They save nothing large; their result is a view, or no tensor.
PASSED = frozenset(
    [
        *("size", "dim", "numel", "stride", "is_floating_point", "item", "view", "view_as", "expand", "expand_as"),
        *("transpose", "permute", "movedim", "squeeze", "unsqueeze", "unflatten", "t", "narrow", "select", "detach"),
        *("chunk", "split", "tensor_split", "unbind", "set_grad_enabled"),
    ]
)
# Functions of each element whose backward divides by what they save: what was saved on the way there meets it.
QUOTIENTS = frozenset(
    [
        *("div", "truediv", "rdiv", "rtruediv", "reciprocal", "sqrt", "rsqrt", "root", "log", "log2", "log10", "log1p"),
        *("asin", "acos", "acosh", "atanh", "atan2", "erfinv", "logit", "xlogy", "xlog1py", "entr", "hypot"),
        *("prod", "cumprod", "binary_cross_entropy", "poisson_nll_loss", "gaussian_nll_loss", "addcdiv"),
        *("kl_div of probabilities", "cross_entropy of probabilities"),
        *("lgamma", "mvlgamma", "digamma", "polygamma", "igamma", "igammac", "log_ndtr"),
    ]
)
# Their backward divides by what they save, or takes the exponential of a difference with it.
POLES = QUOTIENTS | frozenset(
    [
        *("renorm", "cosine_similarity", "cdist", "pdist", "dist", "pairwise_distance"),
        *("logsumexp", "logcumsumexp", "ctc_loss", "zeta", "i1", "i1e", "copysign", "corrcoef"),
        *("cosine_embedding_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss"),
        *("lp_pool1d", "lp_pool2d", "lp_pool3d"),
        *("standard_gamma", "sample_dirichlet", "_Dirichlet.apply"),
        *("det", "logdet", "slogdet", "inverse", "pinverse", "cholesky", "svd", "qr", "lu"),
        *("triangular_solve", "lu_solve", "cholesky_solve", "cholesky_inverse"),
    ]
)
# Their pole is at length 0; they save the length, too.
LENGTHS = frozenset(["std", "norm", "linalg_vector_norm", "vector_norm", "normalize"])
# Their derivative jumps where a saved number crosses a threshold; for some, see `intervals`.
STEPS = frozenset(
    [
        *("abs", "sign", "clamp", "clip", "clamp_min", "clamp_max", "maximum", "minimum", "max", "min", "amax", "amin"),
        *("hardtanh", "relu6", "hardswish", "hardsigmoid", "hardshrink", "softshrink", "threshold", "prelu", "rrelu"),
        *("selu", "median", "sort", "topk", "cummax", "cummin", "fmod", "remainder", "fmax", "fmin", "i0e"),
        "softplus that jumps",
        *("nan_to_num", "nansum", "nanmean"),  # a NaN would turn its whole group of codes into NaN
        *("huber_loss", "smooth_l1_loss", "l1_loss", "hinge_embedding_loss", "margin_ranking_loss"),
        *("multi_margin_loss", "multilabel_margin_loss", "nanmedian", "aminmax"),
        *("scatter_reduce", "index_reduce", "segment_reduce"),
        *("grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d"),
        "sinc",  # it swings within a step of a large number
    ]
)
# Above its threshold softplus is linear: its derivative jumps by 1 - sigmoid(threshold). From this threshold on, that
# is less than .0004, a fifth of the error of 8-bit codes, half a step of 1/255.
NO_JUMP = 8
# They save their result.
RESULTS = frozenset(["relu", "leaky_relu", "tanh", "sigmoid"])
# They save positions of the largest elements; over how many of the last dimensions.
POOLS = {"max_pool1d": 1, "max_pool2d": 2, "max_pool3d": 3}
# Their backward uses only the shape of their input.
SHAPE_ONLY = frozenset([*POOLS, "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d", "nll_loss", "nll_loss2d"])
# They save logarithms of probabilities; backward takes their exponentials.
LOG_PROBABILITIES = frozenset(["log_softmax", "cross_entropy", "cross_entropy_loss"])
DROPOUTS = frozenset(["dropout", "feature_dropout", "dropout1d", "dropout2d", "dropout3d"])
# They save only their arguments, which autocast casts to fewer bits.
PRODUCTS = frozenset(
    [
        *("linear", "matmul", "rmatmul", "mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "addmv", "einsum"),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    ]
)
# Besides their arguments they save statistics, even of few elements each.
NORMS = frozenset(["layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"])
ATTENTION = "scaled_dot_product_attention"
APPLY = ".apply"  # the end of the name of an autograd.Function
# An element of their result is made of many: an error of one code is no factor of it.
MIXING = PRODUCTS | NORMS | {ATTENTION, "bilinear", "embedding_bag", "lstm", "gru", "rnn_tanh", "rnn_relu"}
# Their derivative is one number on each side of an end; a bit per element tells the side.
BY_SIDE = DROPOUTS | {
    *("relu", "leaky_relu", "relu6", "hardtanh", "hardsigmoid", "threshold", "clamp", "clip", "clamp_min", "clamp_max"),
}
# They hand out what their backward reads, and a loss divides by it or by what is left to 1.
SATURATED = frozenset(["sigmoid", "tanh", "softmax", "softmin", "gumbel_softmax", "exp", "exp2", "expm1"])
# The derivative runs through a period: of a phase, what backward computes has a code.
PHASES = frozenset(["sin", "cos"])

# Other names of a function; a leading "special_" is removed before.
ALIASES = {
    **{"divide": "div", "true_divide": "div", "multiply": "mul", "subtract": "sub", "absolute": "abs"},
    **{"arccos": "acos", "arcsin": "asin", "arccosh": "acosh", "arctanh": "atanh", "arctan2": "atan2"},
    **{"psi": "digamma", "gammaln": "lgamma", "multigammaln": "mvlgamma", "gammainc": "igamma", "gammaincc": "igammac"},
    **{"negative": "neg", "expit": "sigmoid", "mod": "remainder", "rmod": "remainder"},
    **{"matrix_power": "linalg_matrix_power", "orgqr": "linalg_householder_product"},
    **{f"max_pool{dims}d_with_indices": f"max_pool{dims}d" for dims in (1, 2, 3)},
}
IN_PLACE = {
    **{"iadd": "add", "isub": "sub", "imul": "mul", "idiv": "div", "itruediv": "div", "ipow": "pow"},
    "imod": "remainder",
}


def name_of(function: Callable[..., Any]) -> str:
    """The name without underscores around it: "mul" for `x.mul(y)`, `x * y`, `x.mul_(y)`, `x *= y` and operators.

    Another library's operator has its library before it, as "mine::mul".
    """
    name: str = getattr(function, "__name__", "").partition(".")[0].strip("_").removeprefix("special_")
    library = getattr(function, "namespace", None) or getattr(function, "_qualified_op_name", "aten").partition("::")[0]
    if library != "aten":
        return f"{library}::{name}"
    return IN_PLACE.get(name, ALIASES.get(name, name))


def is_in_place(function: Callable[..., Any]) -> bool:
    """Whether, by its name, a function writes its result into its first argument."""
    name: str = getattr(function, "__name__", "").partition(".")[0]
    return name.strip("_") in IN_PLACE or (name.endswith("_") and not name.endswith("__"))


def named(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The name, or a name with a pole or jump if with these arguments all saved tensors must be exact.

    "root" for a power by anything but 1, 2, 3 and so on, for a norm that is not the square root of a sum of squares,
    and for a quotient whose parts are given by name, in whatever order; "... of probabilities" for losses whose
    backward takes logarithms; and "softplus that jumps".
    """
    second = args[1] if len(args) > 1 else None
    if name in ("div", "truediv"):
        return "root" if {"input", "other"} & kwargs.keys() else name
    if name in ("pow", "float_power"):
        exponent = kwargs.get("exponent", second)
        return name if isinstance(exponent, int | float) and exponent >= 1 and exponent == int(exponent) else "root"
    if name == "rpow":
        return "root" if isinstance(second, Tensor) else name
    if name == "softplus":
        threshold = kwargs.get("threshold", args[3] if len(args) > 3 else 20)
        return name if threshold >= NO_JUMP else "softplus that jumps"
    if name in LENGTHS - {"std"}:
        order = kwargs.get("p", kwargs.get("ord", second))
        return name if order in (None, 2, "fro") else "root"
    if name == "kl_div":
        return name if kwargs.get("log_target", args[5] if len(args) > 5 else False) else f"{name} of probabilities"
    if name in ("cross_entropy", "cross_entropy_loss"):
        target = kwargs.get("target", second)
        return "cross_entropy of probabilities" if isinstance(target, Tensor) and target.requires_grad else name
    return name


def needs_exact(name: str, places: Sequence[int]) -> bool:
    """Whether backward needs a saved tensor exactly; `places` are its positions among the arguments.

    A call without a name, as in a script of torch.jit, is not visible and may be anything.
    """
    if name in ("div", "truediv") or name in LENGTHS:  # all but what is divided
        return list(places) != [0]
    return not name or name in POLES or name in STEPS or name.startswith("linalg_")
