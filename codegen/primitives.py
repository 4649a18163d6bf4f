"""The functions that Triton kernels call, each written out for the dtypes of tensors; all compute in float32.

In all three dtypes:
- An exponential is the product of two others: the fast exp2 of NVIDIA GPUs flushes subnormal numbers to 0, a product
  does not.
- The catalogue needs nothing from libdevice, which Triton's interpreter lacks: so tests run the code that GPUs run.
  (log, sin, cos and erf, in users' expressions, are Triton's, which calls libdevice for them.)
In 16 bits the reciprocal of a number in [1, inf] is the square of rsqrt: two instructions instead of eight.
"""

from collections.abc import Callable

from actfit.codegen import gaussian
from actfit.codegen.primitive import Primitive, polynomial

_LOG2E, _HALF_LOG2E = 1.4426950408889634, 0.7213475204444817


def _exp(dtype: str) -> Primitive:
    if dtype != "float32":
        return Primitive("exp(x).", (f"h = tl.exp2({_HALF_LOG2E} * x)", "return h * h"))
    body = (
        "x = minimum(maximum(x, -150.0), 150.0)",
        f"n = tl.floor(tl.fma({_LOG2E}, x, 0.5))",
        "r = tl.fma(n, -0.693145751953125, x)  # n times this is exact",
        "r = tl.fma(n, -1.4286068203094173e-06, r)  # x - n*log(2)",
        "m = tl.floor(0.5 * n)",
        f"return tl.exp2({_LOG2E} * r) * tl.exp2(m) * tl.exp2(n - m)",
    )
    return Primitive("exp(x), by powers of 2 and the rest, which is small.", body, ("maximum", "minimum"))


def _sigmoid(dtype: str) -> Primitive:
    doc = "1 / (1 + exp(-x)), from exp(-|x|/2): nothing overflows."
    if dtype != "float32":
        body = (
            f"h = tl.exp2({-_HALF_LOG2E} * tl.abs(x))",
            "r = tl.rsqrt(tl.fma(h, h, 1.0)) * tl.where(x < 0, h, 1.0)",
            "return r * r",
        )
        return Primitive(doc, body)
    body = ("h = exp(-0.5 * tl.abs(x))", "r = tl.where(x < 0, h, 1.0)", "return r * (r / tl.fma(h, h, 1.0))")
    return Primitive(doc, body, ("exp",))


def _softplus(dtype: str) -> Primitive:
    body = ("e = exp(-tl.abs(x))", *polynomial("p", "e", "log1p of exp", dtype), "return tl.fma(e, p, maximum(x, 0.0))")
    doc = "log(1 + exp(x)): max(x, 0) + log(1 + exp(-|x|)), whose logarithm is a polynomial."
    return Primitive(doc, body, ("exp", "maximum"))


def _tanh(dtype: str) -> Primitive:
    reciprocal = "r = tl.rsqrt(1.0 + e)\nr = r * r" if dtype != "float32" else "r = 1.0 / (1.0 + e)"
    end = "0.5" if dtype != "float32" else "0.6"
    body = (
        "z = x * x",
        *polynomial("p", "z", "tanh", dtype),
        "small = tl.fma(x * z, p, x)",
        "e = exp(-2.0 * tl.abs(x))",
        *reciprocal.split("\n"),
        "large = tl.fma(-2.0 * e, r, 1.0)",
        f"return tl.where(tl.abs(x) < {end}, small, tl.where(x < 0, -large, large))",
    )
    return Primitive("tanh(x): a polynomial next to 0, 1 - 2/(1 + exp(2|x|)) elsewhere.", body, ("exp",))


def _sech(dtype: str) -> Primitive:
    doc = "1 / cosh(x)."
    rest = ("r = tl.rsqrt(tl.fma(h, h, 1.0))", "return 2.0 * h * r * r")
    body = ("h = exp(-tl.abs(x))", *(rest if dtype != "float32" else ("return 2.0 * h / tl.fma(h, h, 1.0)",)))
    return Primitive(doc, body, ("exp",))


def _tanhshrink(dtype: str) -> Primitive:
    body = (
        "z = x * x",
        *polynomial("p", "z", "tanhshrink", dtype),
        "return tl.where(z < 1.0, -x * z * p, x - tanh(x))",
    )
    return Primitive("x - tanh(x), without its cancellation next to 0.", body, ("tanh",))


_OF_SOFTPLUS = (
    "e = exp(-tl.abs(x))",
    "n = tl.where(x < 0, e * (e + 2.0), tl.fma(2.0, e, 1.0))",
    "d = n + tl.where(x < 0, 2.0, 2.0 * e * e)",
)


def _tanh_softplus(dtype: str) -> Primitive:
    quotient = ("r = tl.rsqrt(d)", "return n * r * r") if dtype != "float32" else ("return n / d",)
    doc = "tanh(log(1 + exp(x))) = n / d, polynomials in exp(-|x|)."
    return Primitive(doc, (*_OF_SOFTPLUS, *quotient), ("exp",))


def _sech2_softplus(dtype: str) -> Primitive:
    quotient = ("r = tl.rsqrt(d)", "q = (1.0 + e) * r * r") if dtype != "float32" else ("q = (1.0 + e) / d",)
    body = (*_OF_SOFTPLUS, *quotient, "return tl.where(x < 0, 4.0, 4.0 * e * e) * q * q")
    return Primitive("1 - tanh(log(1 + exp(x)))², without its cancellation.", body, ("exp",))


def _softsign(dtype: str) -> Primitive:
    if dtype != "float32":
        return Primitive("x / (1 + |x|).", ("r = tl.rsqrt(1.0 + tl.abs(x))", "return x * r * r"))
    return Primitive("x / (1 + |x|).", ("return x / (1.0 + tl.abs(x))",))


def _near_zero(
    function: str, far: str, ends: tuple[str, str], calls: tuple[str, ...] = ()
) -> Callable[[str], Primitive]:
    """A primitive that is x times a polynomial next to 0, and `far` elsewhere."""

    def make(dtype: str) -> Primitive:
        body = (
            *polynomial("p", "x", function, dtype),
            f"return tl.where(tl.abs(x) < {ends[dtype == 'float32']}, x * p, {far})",
        )
        return Primitive(f"{function}(x): a polynomial next to 0, where the plain spelling cancels.", body, calls)

    return make


def _sinh(dtype: str) -> Primitive:
    end = "0.5" if dtype != "float32" else "1.0"
    body = (
        "z = x * x",
        *polynomial("p", "z", "sinh", dtype),
        "h = exp(0.5 * tl.abs(x))",
        "large = tl.fma(0.5 * h, h, -0.5 * exp(-tl.abs(x)))",
        f"return tl.where(tl.abs(x) < {end}, tl.fma(x * z, p, x), tl.where(x < 0, -large, large))",
    )
    return Primitive("sinh(x): a polynomial next to 0.", body, ("exp",))


def _atan(dtype: str) -> Primitive:
    body = (
        "steep = tl.abs(x) > 1.0",
        "u = tl.where(steep, -1.0 / x, x)",
        "z = u * u",
        *polynomial("p", "z", "atan", dtype),
        "return tl.fma(u * z, p, u) + tl.where(steep, tl.where(x < 0, -1.5707963267948966, 1.5707963267948966), 0.0)",
    )
    return Primitive("atan(x): a polynomial on [-1, 1], and ±pi/2 - atan(1/x) beyond.", body)


def _plain(doc: str, *body: str, calls: tuple[str, ...] = (), arguments: str = "x") -> Callable[[str], Primitive]:
    return lambda _: Primitive(doc, body, calls, arguments)


TRITON: dict[str, Callable[[str], Primitive]] = {
    "exp": _exp,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "tanh": _tanh,
    "sech": _sech,
    "tanhshrink": _tanhshrink,
    "tanh_softplus": _tanh_softplus,
    "sech2_softplus": _sech2_softplus,
    "softsign": _softsign,
    "phi": gaussian.phi,
    "Phi": gaussian.Phi,
    "fine_Phi": gaussian.fine_Phi,
    "expm1": _near_zero("expm1", "exp(x) - 1.0", ("0.125", "0.375"), ("exp",)),
    "log1p": _near_zero("log1p", "tl.log(1.0 + x)", ("0.125", "0.25")),
    "sinh": _sinh,
    "cosh": _plain(
        "cosh(x).", "h = exp(0.5 * tl.abs(x))", "return tl.fma(0.5 * h, h, 0.5 * exp(-tl.abs(x)))", calls=("exp",)
    ),
    "atan": _atan,
    **{name: _plain(f"{name}(x).", f"return tl.{name}(x)") for name in ("log", "sin", "cos", "erf")},
    "tan": _plain("tan(x).", "return tl.sin(x) / tl.cos(x)"),
    "erfc": _plain("1 - erf(x).", "return 2.0 * Phi(-1.4142135623730951 * x)", calls=("Phi",)),
    "sign": _plain("-1, 0 or 1; NaN of NaN.", "return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, x * 0.0))"),
    **{
        name: _plain(
            f"The {which} of two; NaN if one is.",
            f"return tl.{name}(x, y, propagate_nan=tl.PropagateNan.ALL)",
            arguments="x, y",
        )
        for name, which in (("maximum", "larger"), ("minimum", "smaller"))
    },
    "power": _plain(
        "x**exponent for x >= 0 and exponent > 0.", "return tl.exp2(exponent * tl.log2(x))", arguments="x, exponent"
    ),
}
"""name -> the primitive for a dtype"""
