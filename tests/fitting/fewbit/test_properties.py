"""Properties of every fit: order, symmetries, exact scaling, stationarity, the same bytes on every run."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from numpy._core import _multiarray_umath as cpu

from actfit.coefficients.document import dumps, seal
from actfit.coefficients.store import DATA
from actfit.fitting.activations import from_expression, get
from actfit.fitting.activations.catalogue import CATALOGUE
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit import document, judge
from actfit.fitting.fewbit.curve import Curve
from actfit.fitting.fewbit.solve import fit, fit_to_error
from actfit.fitting.fewbit.steps import Steps, contiguous_steps
from actfit.fitting.weights import uniform
from tests.fitting.fewbit.references import DERIVATIVES, HI, LO, activation_of, fitted

DOMAIN = (LO, HI)
ROUNDING = 1e-13  # of an error by quadrature, relative to ∫ f'² w


def error_of(name, steps):
    return judge.l2_squared(activation_of(name), uniform(), DOMAIN, steps)


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "softsign"])
def test_even_is_shared_where_f_prime_falls_from_0(name):
    """Bit for bit: the two are solved on different domains, and rounded once."""
    for bits in (1, 2, 3, 4):
        even, shared = fitted(name, bits, "even"), fitted(name, bits, "shared")
        assert even.steps.borders.tolist() == shared.steps.borders.tolist()
        assert even.steps.levels.tolist() == shared.steps.levels.tolist()
        assert even.steps.codes.tolist() == shared.steps.codes.tolist()
        assert even.error.l2_squared == shared.error.l2_squared
        assert even.error.linf == shared.error.linf


@pytest.mark.parametrize("kind", ["shared", "contiguous"])
@pytest.mark.parametrize("power", [2, -10, -60, 70])
@pytest.mark.parametrize("name", ["gelu", "selu", "tanh"])
def test_scaling_f_scales_the_answer_exactly(name, power, kind):
    unscaled = fitted(name, 3, kind)
    scaled = fitted(f"({CATALOGUE[name].expr})*2**({power})", 3, kind)
    assert scaled.steps.borders.tolist() == unscaled.steps.borders.tolist()
    assert scaled.steps.codes.tolist() == unscaled.steps.codes.tolist()
    assert scaled.steps.levels.tolist() == (unscaled.steps.levels * 2.0**power).tolist()
    assert scaled.error.l2_squared == unscaled.error.l2_squared * 4.0**power
    assert scaled.error.linf == unscaled.error.linf * 2.0**power
    # The bound is rounded down to six decimal digits.
    assert scaled.error.lower_bound == pytest.approx(unscaled.error.lower_bound * 4.0**power, rel=1e-5)


@pytest.mark.parametrize("kind", ["shared", "contiguous"])
@pytest.mark.parametrize("name", ["selu", "mish", "elu"])
def test_reflecting_x_reflects_the_answer(name, kind):
    """-f(-x) has the derivative f'(-x)."""
    original = fitted(name, 3, kind)
    mirror = fit(
        from_expression("-(" + re.sub(r"\bx\b", "(-x)", CATALOGUE[name].expr) + ")", "mirror", CATALOGUE[name].params),
        3,
        levels=kind,
    )
    assert mirror.steps.borders.tolist() == (-original.steps.borders[::-1]).tolist()
    assert mirror.steps.codes.tolist() == original.steps.codes[::-1].tolist()
    assert mirror.steps.levels.tolist() == original.steps.levels.tolist()
    assert mirror.error.l2_squared == original.error.l2_squared
    assert mirror.error.linf_at == -original.error.linf_at


@pytest.mark.parametrize(
    ("name", "bits", "kind"), [("gelu", 4, "best"), ("hardswish", 3, "best"), ("tanh", 3, "contiguous")]
)
def test_the_first_of_equally_good_mirror_images_is_taken(name, bits, kind):
    """f'(-x) = 1 - f'(x), or f' even: the mirror image is as good, and not better."""
    steps = fitted(name, bits, kind).steps
    twin = steps.mirrored() if name == "tanh" else steps.mirrored().flipped(1.0)
    assert steps.borders.tolist() < twin.borders.tolist()
    error = fitted(name, bits, kind).error.l2_squared
    assert error_of(name, twin) == pytest.approx(error, rel=1e-14)


@pytest.mark.parametrize("kind", ["shared", "contiguous"])
@pytest.mark.parametrize("name", ["gelu", "silu", "mish", "selu", "hardswish", "tanh", "softplus"])
def test_it_is_a_stationary_point(name, kind):
    """The paper's eq. 5: levels are means of f', borders lie where f' passes mid-levels (or leaps over them)."""
    activation = activation_of(name)
    derivative = DERIVATIVES[name]
    for bits in (1, 2, 3, 4):
        steps = fitted(name, bits, kind).steps
        edges = np.array([LO, *steps.borders, HI])
        rises = np.diff(activation.f(edges))
        lengths = np.diff(edges)
        means = np.bincount(steps.codes, rises) / np.bincount(steps.codes, lengths)
        assert np.abs(means - steps.levels).max() < 1e-10
        middles = (steps.levels[steps.codes[1:]] + steps.levels[steps.codes[:-1]]) / 2
        beside = derivative(steps.borders - 1e-9), derivative(steps.borders + 1e-9)
        assert (np.minimum(*beside) <= middles + 2e-9).all()
        assert (np.maximum(*beside) >= middles - 2e-9).all()
        smooth = np.abs(beside[1] - beside[0]) < 1e-8
        assert np.abs(derivative(steps.borders) - middles)[smooth].max(initial=0.0) < 1e-10


def test_a_border_on_a_leap_stays_on_it():
    """1/3 has more than 12 digits; rounded to them, the border would leave the wrong level beside the leap."""
    for name in ("where(x > 1/3, x + x**2/9, x/9)", "where(x > 1/3, x, 0)"):
        for weight in ("uniform", "norm", "laplace"):
            assert 1 / 3 in fitted(name, 2, "best", weight).steps.borders.tolist()
    assert fitted("where(x > 1/3, x, 0)", 1, "best", "norm").error.l2_squared == 0


def test_borders_never_leave_their_order():
    """f' = x, and x - 2 right of 0: the two mid-levels are passed at 1 and at -1/2, in the wrong order."""
    curve = Curve(activation_of("where(x < 0, x*x/2, x*x/2 - 2*x)"), -0.95, 1.4)
    steps = Steps(np.array([-0.9, 1.2]), np.arange(3), np.array([-1.2, -0.8, -0.2]))
    assert contiguous_steps(curve, steps, steps.levels).borders.tolist() == [-0.9, 1.2]
    higher = np.array([-1.2, -0.8, 0.9])  # the second mid-level is never passed: its border stays, the other has room
    # A bisected root is a float64 next to the true one.
    assert contiguous_steps(curve, steps, higher).borders == pytest.approx([1.0, 1.2], rel=2.0**-52)


@pytest.mark.slow
def test_the_fewest_bits_for_an_error():
    for limit, bits in [(0.2, 1), (0.041, 2), (0.0406, 2), (0.0405, 3), (0.0081, 3), (0.008, 4)]:
        assert fit_to_error(get("gelu"), limit).bits == bits
    assert fit_to_error(get("relu"), 0.0).bits == 1
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="max-error"):
            fit_to_error(get("gelu"), wrong)
    with pytest.raises(InputError, match="what 8 bits reach"):
        fit_to_error(get("relu2"), 1e-9, target_gap=0.5)


def test_even_needs_evenness_on_the_whole_domain():
    """Parity is decided at points near 0; a function that breaks it far out is found by its error."""
    name = "where(x > 100, x, tanh(x))"
    assert activation_of(name).parity == "even"
    assert fitted(name, 2, "even", "uniform", DOMAIN).error.gap <= 1e-3
    with pytest.raises(InputError, match="not on this domain"):
        fitted(name, 2, "even", "uniform", (-200.0, 200.0))


def stored(result):
    return dumps(seal(document.to_document(result), 1))


@pytest.mark.parametrize(
    ("name", "bits"), [("gelu", 3), ("gelu", 4), ("selu", 2), ("tanh", 4), ("hardswish", 4), ("relu6", 1), ("mish", 4)]
)
def test_shipped_files_are_what_a_fit_gives(name, bits):
    """Bit for bit, but for the versions of libraries, the document's own version and the hash of it all."""
    fresh = json.loads(stored(fitted(name, bits)))
    newest = max((DATA / name).glob(f"fewbit-{bits}bit.v*.json"), key=lambda path: int(path.name.split(".v")[1][:-5]))
    shipped = json.loads(newest.read_text())
    for content in (fresh, shipped):
        del content["sha256"], content["version"], content["provenance"]["versions"]
    assert json.dumps(fresh) == json.dumps(shipped)


SCRIPT = """
import sys
from actfit.coefficients.document import dumps, seal
from actfit.fitting.activations import get
from actfit.fitting.fewbit import document
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.weights import parse_weight
for name, bits, levels, weight in [("gelu", 3, "best", "uniform"), ("mish", 2, "contiguous", "laplace")]:
    result = fit(get(name), bits, levels=levels, weight=parse_weight(weight))
    sys.stdout.write(dumps(seal(document.to_document(result), 1)))
"""


@pytest.mark.slow
def test_the_processors_features_change_nothing():
    """numpy's exp, and BLAS's solver, differ in the last bits from one instruction set to the next."""
    features = [name for name in cpu.__cpu_dispatch__ if cpu.__cpu_features__.get(name)]
    if not features:
        pytest.skip("numpy has no other instruction set to choose here")
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("NPY_", "OPENBLAS_"))}
    runs = [
        subprocess.run([sys.executable, "-c", SCRIPT], env=plain | more, capture_output=True, text=True, check=True)
        for more in ({}, {"NPY_DISABLE_CPU_FEATURES": " ".join(features), "OPENBLAS_NUM_THREADS": "1"})
    ]
    assert runs[0].stdout
    assert runs[0].stdout == runs[1].stdout
