"""f' in terms of y for any values of a function's parameters; the coefficient files have the defaults only.

The tests compare these formulas with the files, and with f' at other values.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Closed:
    """`formula` in y and the parameters; `bit`, where a bit is needed: the parameter right of which f' is 1, else 0.

    `at_least`: lower limits of parameters, below which f is not monotone. `rounded_for`: what is compared with the
    parameters as the tensor's dtype holds them: "y", which is cut off at them, or "x", as PyTorch's own function does
    it, forward and backward, on CPUs and on CUDA. The others that compare x do not round on CPUs, at least not forward.
    """

    formula: str
    bit: str | None = None
    at_least: Mapping[str, float] | None = None
    rounded_for: str = ""


CLOSED = {
    "leaky_relu": Closed("where(y > 0, 1, negative_slope)", at_least={"negative_slope": 0.0}),
    "threshold": Closed("on_right", bit="threshold"),
    "hardtanh": Closed("where(min_val < y < max_val, 1, 0)", rounded_for="y"),
    "hardshrink": Closed("where(y < 0 or y > 0, 1, 0)", at_least={"lambd": 0.0}, rounded_for="x"),
    "softshrink": Closed("where(y < 0 or y > 0, 1, 0)", at_least={"lambd": 0.0}),
    "softplus": Closed("-expm1(-beta*y)", at_least={"beta": 0.0}),
    "elu": Closed("where(y > 0, 1, y + alpha)", at_least={"alpha": 0.0}),
    "celu": Closed("where(y > 0, 1, 1 + y/alpha)", at_least={"alpha": 0.0}),
}
