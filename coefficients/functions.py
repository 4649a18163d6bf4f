"""The catalogue: one row for each activation, without anything that can be derived from it.

Expressions are text of `fitting.activations.grammar`; at a kink the condition holds for the branch whose
derivative torch's backward uses there. `torch` names the counterpart in `torch.nn.functional`, which takes
the parameters by the same names; defaults are torch's own (for threshold, those of its documentation).

The rows are plain text and in this package, since reading a file or an option needs names, but not sympy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One activation: its expression, parameters with defaults, counterpart in torch, parameter rules."""

    expr: str
    params: Mapping[str, float] = field(default_factory=dict)
    torch: str | None = None
    torch_options: Mapping[str, str] = field(default_factory=dict)
    rule: tuple[str, str] | None = None  # (text, expression of the parameters that must be positive)


_SELU_ALPHA = "1.6732632423543772848170429916717"
_SELU_SCALE = "1.0507009873554804934193349852946"

CATALOGUE: dict[str, Row] = {
    "relu": Row("where(x > 0, x, 0)", torch="relu"),
    "leaky_relu": Row("where(x > 0, x, negative_slope*x)", {"negative_slope": 0.01}, torch="leaky_relu"),
    "relu6": Row("Piecewise((0, x <= 0), (6, x >= 6), (x, True))", torch="relu6"),
    "threshold": Row("where(x > threshold, x, value)", {"threshold": 0.1, "value": 20.0}, torch="threshold"),
    "hardtanh": Row(
        "Piecewise((min_val, x <= min_val), (max_val, x >= max_val), (x, True))",
        {"min_val": -1.0, "max_val": 1.0},
        torch="hardtanh",
        rule=("max_val must be above min_val", "max_val - min_val"),
    ),
    "hardsigmoid": Row("Piecewise((0, x <= -3), (1, x >= 3), (x/6 + 1/2, True))", torch="hardsigmoid"),
    "hardshrink": Row(
        "where(-lambd <= x <= lambd, 0, x)",
        {"lambd": 0.5},
        torch="hardshrink",
        rule=("lambd must be positive", "lambd"),
    ),
    "softshrink": Row(
        "Piecewise((x - lambd, x > lambd), (x + lambd, x < -lambd), (0, True))",
        {"lambd": 0.5},
        torch="softshrink",
        rule=("lambd must be positive", "lambd"),
    ),
    "relu2": Row("where(x > 0, x**2, 0)"),
    "hardswish": Row("Piecewise((0, x <= -3), (x, x >= 3), (x*(x + 3)/6, True))", torch="hardswish"),
    "sigmoid": Row("sigmoid(x)", torch="sigmoid"),
    "tanh": Row("tanh(x)", torch="tanh"),
    "softplus": Row("softplus(beta*x)/beta", {"beta": 1.0}, torch="softplus", rule=("beta must be positive", "beta")),
    "softsign": Row("softsign(x)", torch="softsign"),
    "logsigmoid": Row("-softplus(-x)", torch="logsigmoid"),
    "tanhshrink": Row("x - tanh(x)", torch="tanhshrink"),
    "elu": Row("where(x > 0, x, alpha*expm1(x))", {"alpha": 1.0}, torch="elu"),
    "celu": Row(
        "where(x > 0, x, alpha*expm1(x/alpha))",
        {"alpha": 1.0},
        torch="celu",
        rule=("alpha must be positive", "alpha"),
    ),
    "selu": Row(f"{_SELU_SCALE}*where(x > 0, x, {_SELU_ALPHA}*expm1(x))", torch="selu"),
    "gelu": Row("x*Phi(x)", torch="gelu"),
    "gelu_tanh": Row(
        "x*(1 + tanh(sqrt(2/pi)*(x + 0.044715*x**3)))/2", torch="gelu", torch_options={"approximate": "tanh"}
    ),
    "quick_gelu": Row("x*sigmoid(1.702*x)"),
    "silu": Row("x*sigmoid(x)", torch="silu"),
    "mish": Row("x*tanh(softplus(x))", torch="mish"),
}
ALIASES = {"swish": "silu"}


def names() -> tuple[str, ...]:
    """The catalogue's names in its own order, without aliases."""
    return tuple(CATALOGUE)
