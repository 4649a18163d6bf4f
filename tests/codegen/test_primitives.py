"""Each primitive, for both targets, against its definition at 50 digits: sampled and extreme float32 points."""

import mpmath
import numpy as np
import pytest
import torch

from actfit.codegen import minimax
from actfit.codegen.minimax import polynomial
from actfit.codegen.module import TRITON_IMPORTS, primitives
from actfit.codegen.polynomials import POLYNOMIALS, coefficients, tolerance
from actfit.codegen.primitives import TRITON
from actfit.codegen.subject import DTYPES
from actfit.codegen.torch_primitives import NAMES, TORCH
from tests.codegen.emitted import MEANING
from tests.codegen.run import module

MEANINGS = {
    **MEANING,
    **{name: getattr(mpmath, name) for name in ("exp", "log", "sin", "cos", "tan", "sinh", "cosh", "atan")},
    **{name: getattr(mpmath, name) for name in ("erf", "erfc", "sign")},
}
PARTS = {"softplus": "log1p of exp", "Phi": "mills", "erfc": "mills", "fine_Phi": "fine mills"}
UNARY = sorted(set(MEANINGS) & set(TRITON))
TINY = 2.0**-126
KERNEL = """
@triton.jit
def run(x_ptr, y_ptr, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(y_ptr + at, {name}(tl.load(x_ptr + at)))
"""


def points(name: str) -> np.ndarray:
    """2048 float32 numbers: all magnitudes, both signs, the neighbourhoods of where a formula changes, the ends."""
    rng = np.random.default_rng(7)
    scale = np.exp(rng.uniform(-20, 5, 700))
    around = np.array([0.125, 0.25, 0.375, 0.5, 0.6, 1.0, 14.5, 87.3, 88.7, 100.0, 104.0])
    near = np.concatenate([np.nextafter(np.float32(around), np.float32(s * np.inf)) for s in (1, -1)])
    x = np.concatenate([scale, -scale, around, -around, near, -near, [0.0, -0.0, 1e-38, -1e-38, 1e-45]])
    if name in ("log", "log1p"):
        x = np.abs(x) if name == "log" else np.where(x <= -1, -1 / (1 + np.abs(x)), x)
        x = x[x != 0] if name == "log" else x
    if name in ("sin", "cos", "tan"):
        x = np.clip(x, -50, 50)
    if name in ("sinh", "cosh"):
        x = np.clip(x, -87, 87)
    return np.resize(np.float32(x), 2048)


def allowed(name: str, x: np.ndarray, exact: np.ndarray, precision: str) -> np.ndarray:
    """What rounding may do.

    A relative part: the polynomial's, that of evaluating it, and 16 units in the last place of float32 for what else
    is done. Where an exponential of u is taken of a rounded u, |u|·2**-24 more for each rounding of u (in Phi of 16
    bits, u is up to 24 more). And the least subnormal number.
    """
    polynomial = PARTS.get(name, name)
    if precision == "float32" and polynomial == "mills":
        polynomial = "fine mills"
    relative = (tolerance(polynomial, precision) if polynomial in POLYNOMIALS else 0) + 16 * 2.0**-24
    if polynomial in POLYNOMIALS:  # Horner's rule: 2n roundings of terms that may be larger than their sum
        c = np.array(coefficients(polynomial, precision))
        relative += 2 * len(c) * np.abs(c).sum() / abs(c.sum()) * 2.0**-24
    exponent = {"phi": x**2 / 2, "Phi": x**2 / 2, "fine_Phi": x**2 / 2, "erfc": x**2}.get(
        name, np.abs(x) if name != "erf" else 0 * x
    )
    exponent = exponent + 24 * (polynomial == "mills")
    relative = relative + 4 * np.where(exponent < 128, exponent, 0) * 2.0**-24
    condition = np.abs(x) if name in ("sin", "cos") else np.abs(x) * (1 + exact**2) if name == "tan" else 0
    return relative * np.abs(exact) + condition * 2.0**-24 + 2.0**-149


def compare(name, got, precision, subnormal=True):
    x = points(name)
    with mpmath.workdps(50):
        exact = np.array([float(MEANINGS[name](mpmath.mpf(float(point)))) for point in x])
    error = np.abs(got.astype(np.float64) - exact)
    finite = np.abs(exact) < 3.4e38
    if not subnormal:
        finite &= (np.abs(exact) > TINY) | (exact == 0)
    limit = allowed(name, x.astype(np.float64), exact, precision)
    worst = int(np.argmax(np.where(finite, error / limit, 0)))
    assert (error <= limit)[finite].all(), f"{name}({x[worst]!r}): got {got[worst]!r}, exact {exact[worst]!r}"


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_triton_primitive(name, precision, tmp_path):
    texts = [primitive.text() for primitive in primitives([name], precision, "triton")]
    text = "\n\n".join([TRITON_IMPORTS, *texts, KERNEL.format(name=name)])
    x = torch.from_numpy(points(name))
    y = torch.full_like(x, torch.nan)
    with np.errstate(all="ignore"):
        module(text, tmp_path).run[(1,)](x, y, x.numel())
    compare(name, y.numpy(), precision)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNARY)
def test_torch_primitive(name, tmp_path):
    x = torch.from_numpy(points(name))
    if name in TORCH:
        (primitive,) = primitives([name], "float32", "torch")
        y = getattr(module(f"import torch\n\n\n{primitive.text()}\n", tmp_path), name)(x)
    else:
        function = torch
        for part in NAMES[name].split(".")[1:]:
            function = getattr(function, part)
        y = function(x)
    if name == "tanhshrink":  # emitted for PyTorch as it is defined; forward of the reference is the stock function
        keep = x.abs() >= 1
        y = torch.where(keep, y, torch.nan_to_num(x.double() - torch.tanh(x.double())).float())
        y = torch.where(x.abs() < 1e-2, (x.double() ** 3 / 3 - 2 * x.double() ** 5 / 15).float(), y)
    # PyTorch's own functions flush some subnormal numbers.
    compare(name, y.numpy(), "float32", subnormal=False)


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("precision", DTYPES)
def test_clamps_pass_nan_on_and_powers_take_zero(precision, tmp_path):
    body = (
        "\n@triton.jit\ndef run(x_ptr, y_ptr, n: tl.constexpr):\n    at = tl.arange(0, n)\n"
        "    x = tl.load(x_ptr + at)\n"
        "    tl.store(y_ptr + at, maximum(x, 1.0))\n    tl.store(y_ptr + n + at, minimum(x, 1.0))\n"
        "    tl.store(y_ptr + 2 * n + at, power(tl.abs(x), 0.3333333333333333))\n"
    )
    texts = [primitive.text() for primitive in primitives(["maximum", "minimum", "power"], precision, "triton")]
    text = "\n\n".join([TRITON_IMPORTS, *texts, body])
    x = torch.tensor([0.0, 27.0, torch.nan, -8.0])
    y = torch.empty(12)
    with np.errstate(all="ignore"):
        module(text, tmp_path).run[(1,)](x, y, 4)
    nan = torch.nan
    expected = torch.tensor([1.0, 27.0, nan, 1.0, 0.0, 1.0, nan, -8.0, 0.0, 3.0, nan, 2.0])
    torch.testing.assert_close(y, expected, rtol=4 * 2.0**-23, atol=0, equal_nan=True)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials_keep_their_tolerance(name, precision):
    function, coarse, fine = POLYNOMIALS[name]
    lo, hi = fine if precision == "float32" else coarse
    c = coefficients(name, precision)
    with mpmath.workdps(40):
        for i in range(201):
            at = mpmath.mpf(lo) + (mpmath.mpf(hi) - lo) * i / 200
            error = abs(mpmath.polyval([mpmath.mpf(number) for number in c[::-1]], at) / function(at) - 1)
            # Rounding the coefficients to float32 adds the sum of their halves.
            rounding = (
                sum(abs(number * float(at) ** k) for k, number in enumerate(c)) / abs(float(function(at))) * 2.0**-24
            )
            assert error <= tolerance(name, precision) + rounding


def test_minimax_is_the_best_polynomial():
    # exp on [-1, 1] by a cubic: the error 0.0055283 is in the tables (Meinardus, 1967) for the absolute error; for the
    # relative one, de la Vallée Poussin: no polynomial is better than the least of five alternating errors.
    c = polynomial(mpmath.exp, -1, 1, 1e-2)
    assert len(c) == 4
    x = np.linspace(-1, 1, 20001)
    error = np.polyval(c[::-1], x) / np.exp(x) - 1
    swings = np.split(error, np.flatnonzero(np.diff(np.sign(error))) + 1)
    peaks = [float(np.abs(swing).max()) for swing in swings]
    assert len(peaks) >= 5
    assert max(peaks) <= min(peaks) * (1 + 1e-3)  # the exchange stops within 1e-4; float32 coefficients move the rest


@pytest.mark.slow
def test_minimax_says_when_there_is_none(monkeypatch):
    # For each of 24 degrees, of which none comes near, however long and finely extremes are exchanged.
    monkeypatch.setattr(minimax, "_ROUNDS", 3)
    monkeypatch.setattr(minimax, "_GRID", 12)
    with pytest.raises(ArithmeticError, match="no polynomial of degree"):
        polynomial(lambda at: 1 + abs(at), -1, 1, 1e-9)
