"""The same primitives for plain PyTorch, in the precision of the tensor: by torch's function where there is one."""

from actfit.codegen.primitive import Primitive

NAMES = {
    **{name: f"torch.{name}" for name in ("exp", "sigmoid", "tanh", "expm1", "log1p", "sinh", "cosh", "atan", "log")},
    **{name: f"torch.{name}" for name in ("sin", "cos", "tan", "erf", "erfc", "sign", "maximum", "minimum", "sqrt")},
    "Abs": "torch.abs",
    "power": "torch.pow",
}
"""name -> torch's name"""

# torch.special.ndtr is 0 in float32 from x = -5.6 on.
_PHI = Primitive("Distribution function of N(0, 1).", ("return 0.5 * torch.erfc(-0.7071067811865476 * x)",))

TORCH = {
    "softplus": Primitive("log(1 + exp(x)).", ("return torch.logaddexp(x, torch.zeros_like(x))",)),
    "sech": Primitive("1 / cosh(x).", ("return 1.0 / torch.cosh(x)",)),
    "tanhshrink": Primitive("x - tanh(x).", ("return x - torch.tanh(x)",)),
    "tanh_softplus": Primitive(
        "tanh(log(1 + exp(x))).", ("return torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))",)
    ),
    "sech2_softplus": Primitive(
        "1 - tanh(log(1 + exp(x)))², without its cancellation.",
        ("return 1.0 / torch.cosh(torch.logaddexp(x, torch.zeros_like(x))) ** 2",),
    ),
    "softsign": Primitive("x / (1 + |x|).", ("return x / (1.0 + torch.abs(x))",)),
    "Phi": _PHI,
    "fine_Phi": _PHI,
    "phi": Primitive("Density of N(0, 1).", ("return 0.3989422804014327 * torch.exp(-0.5 * x * x)",)),
    "polynomial": Primitive(
        "The polynomial in x with these coefficients, the highest first.",
        ("y = highest * x + following", "for constant in others:", "    y = y.mul_(x).add_(constant)", "return y"),
        arguments="x, highest, following, *others",
    ),
}
"""name -> the function to define, where torch has none"""
