"""The primitives of N(0, 1): its density phi, and its distribution function Phi by Mills's ratio."""

from actfit.codegen.polynomials import MILLS_SLOPES, coefficients
from actfit.codegen.primitive import Primitive, horner, polynomial

_HALF_LOG2E = 0.7213475204444817
_DENSITY = 0.3989422804014327  # 1 / sqrt(2 pi)
_SCALE = 24  # exp(-x²/2) times 2**24 is a normal number where Phi(x) is not 0; the polynomial takes 2**24 back
_HALF_DENSITY = f"h = tl.exp2({-_HALF_LOG2E / 2} * x * x)"
_PHI_OF_TAIL = ("tail = h * (h * (t * p))", "return tl.where(x > 0, 1.0 - tail, tail)")


def phi(dtype: str) -> Primitive:
    """The density."""
    if dtype != "float32":
        return Primitive("Density of N(0, 1), from exp(-x²/4).", (_HALF_DENSITY, f"return {_DENSITY} * h * h"))
    return Primitive("Density of N(0, 1).", (f"return {_DENSITY} * exp(-0.5 * x * x)",), ("exp",))


def Phi(dtype: str) -> Primitive:
    """The distribution function, as accurate as f asks."""
    doc = "Distribution function of N(0, 1): Phi(-|x|) = exp(-x²/2) times a polynomial in t = 1 / (1 + c*|x|)."
    if dtype == "float32":
        t = f"t = 1.0 / tl.fma({MILLS_SLOPES['fine mills']}, tl.abs(x), 1.0)"
        steps = polynomial("p", "t", "fine mills", dtype)
        return Primitive(doc, (t, *steps, "h = exp(-0.25 * x * x)", *_PHI_OF_TAIL), ("exp",))
    scaled = [c * 2.0**-_SCALE for c in coefficients("mills", dtype)]
    steps = horner("p", "t", tuple(map(repr, scaled)))
    e = f"e = tl.exp2(tl.fma({-_HALF_LOG2E} * x, x, {float(_SCALE)}))  # exp(-x²/2) times 2**{_SCALE}: not subnormal"
    return Primitive(doc, (*_t("mills"), *steps, e, "tail = e * (t * p)", _PHI_OF_TAIL[-1]))


def fine_Phi(dtype: str) -> Primitive:
    """The distribution function, as accurate as f' asks."""
    if dtype == "float32":
        return Primitive("Phi(x), which is fine enough.", ("return Phi(x)",), ("Phi",))
    steps = polynomial("p", "t", "fine mills", dtype)
    return Primitive(
        "Phi(x) to more digits, as in f' two terms cancel.", (*_t("fine mills"), *steps, _HALF_DENSITY, *_PHI_OF_TAIL)
    )


def _t(polynomial: str) -> tuple[str, str]:
    return f"t = tl.rsqrt(tl.fma({MILLS_SLOPES[polynomial]}, tl.abs(x), 1.0))", "t = t * t"
