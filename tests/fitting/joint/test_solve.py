"""Joint codes against an oracle, known optima, symmetries and every partition of few samples."""

import itertools
import math
from collections.abc import Callable
from functools import partial

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from actfit.fitting.activations import from_expression, get
from actfit.fitting.fewbit.polish import NOISE
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.joint.report import as_table
from actfit.fitting.joint.solve import TARGET_GAP, fit_joint
from actfit.fitting.weights import from_callable, from_samples, named, uniform
from tests.fitting.partitions import best_of_all

Array = NDArray[np.float64]
NORMAL = named("norm")
# Max, Quantizing for minimum distortion (1960), table I: the least squared error of N quantised values of N(0, 1).
# (His 0.002499 for 32 is less than any quantiser has, by our bound, and by Lloyd's iteration in 40 digits: 0.0025047.)
MAX_1960 = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497}


def oracle(edges: list[float], derivatives: list[float], outputs: list[float]) -> tuple[float, float]:
    """∫ (f' - q)² w and ∫ (f - y)² w from the definition, in mpmath, for GELU under N(0, 1)."""
    with mpmath.workdps(25):

        def squares(values: Callable[[mpmath.mpf], mpmath.mpf], levels: list[float]) -> float:
            def integrand(x: mpmath.mpf, level: float) -> mpmath.mpf:
                return (values(x) - level) ** 2 * mpmath.npdf(x)

            pieces = zip(itertools.pairwise(edges), levels, strict=True)
            return float(
                sum(mpmath.quad(partial(integrand, level=y), mpmath.linspace(a, b, 3)) for (a, b), y in pieces)
            )

        gelu, derivative = lambda x: x * mpmath.ncdf(x), lambda x: mpmath.ncdf(x) + x * mpmath.npdf(x)
        return squares(derivative, derivatives), squares(gelu, outputs)


def test_the_oracle_agrees_on_both_errors() -> None:
    result = fit_joint(get("gelu"), 2)
    lo, hi = result.domain
    edges = [lo, *result.table.borders.tolist(), hi]
    derivative, output = oracle(edges, result.table.derivatives.tolist(), result.table.outputs.tolist())
    assert result.error.derivative == pytest.approx(derivative, rel=1e-11)  # they are stated to 12 digits
    assert result.error.output == pytest.approx(output, rel=1e-11)
    assert result.error.total == result.error.derivative + result.error.output
    wholes = oracle([lo, -1.0, 0.0, 1.0, hi], [0.0] * 4, [0.0] * 4)
    assert result.error.derivative_share == pytest.approx(math.sqrt(derivative / wholes[0]), rel=1e-11)
    assert result.error.output_share == pytest.approx(math.sqrt(output / wholes[1]), rel=1e-11)


@pytest.mark.parametrize("bits", MAX_1960)
def test_the_identity_gives_the_quantiser_of_max(bits: int) -> None:
    error = fit_joint(from_expression("x", "line"), bits).error
    assert error.derivative == 0.0
    assert error.output == pytest.approx(MAX_1960[bits], rel=5e-4)  # four digits are printed
    assert error.gap <= TARGET_GAP


@pytest.mark.parametrize("name", ["gelu", "softplus"])
def test_without_f_it_is_the_best_few_bit_table(name: str) -> None:
    joint = fit_joint(get(name), 3, output_weight=1e-9)
    alone = fit(get(name), 3, levels="contiguous", weight=NORMAL)
    assert joint.error.derivative == pytest.approx(alone.error.l2_squared, rel=1e-6)
    assert joint.table.borders == pytest.approx(alone.steps.borders, abs=1e-4)


def test_without_the_derivative_it_is_the_best_quantiser_of_f() -> None:
    """For tanh, which is monotone, y = f(x) has a density, and its quantiser can be fitted with y in place of x."""
    joint = fit_joint(get("tanh"), 3, output_weight=1e9)
    density = from_callable(lambda y: np.exp(-(np.arctanh(y) ** 2) / 2) / (1 - y**2) / math.sqrt(2 * math.pi))
    ends = (math.tanh(joint.domain[0]), math.tanh(joint.domain[1]))
    line = fit_joint(from_expression("x", "line"), 3, weight=density, domain=ends)
    assert joint.error.output == pytest.approx(line.error.output, rel=1e-6)
    assert joint.table.outputs == pytest.approx(line.table.outputs, abs=1e-4)


def test_more_weight_on_f_moves_error_from_f_to_its_derivative() -> None:
    fits = [fit_joint(get("silu"), 4, output_weight=weight) for weight in (0.1, 0.5, 1.0, 3.0, 20.0)]
    derivatives, outputs = ([getattr(result.error, key) for result in fits] for key in ("derivative", "output"))
    assert derivatives == sorted(derivatives)
    assert outputs == sorted(outputs, reverse=True)


@given(
    st.lists(st.floats(-4, 4).map(lambda x: round(x, 2) + 0.001), min_size=1, max_size=9),
    st.sampled_from(["gelu", "selu", "tanh", "x*sin(x)"]),
    st.integers(1, 2),
)
def test_few_samples_against_every_partition(samples: list[float], name: str, bits: int) -> None:
    activation = from_expression(name, "own") if "x" in name else get(name)
    x, counts = np.unique(samples, return_counts=True)
    mass, values = counts / len(samples), np.column_stack([activation.df(x), activation.f(x)])

    def cost(a: int, b: int) -> float:
        mean = np.average(values[a:b], axis=0, weights=mass[a:b])
        return float(mass[a:b] @ ((values[a:b] - mean) ** 2).sum(axis=1))

    best = best_of_all(cost, x.size, 2**bits)
    error = fit_joint(activation, bits, weight=from_samples(samples)).error
    # Stated to 12 digits, from levels of 12 digits of the range of the values.
    assert error.total == pytest.approx(best, rel=1e-9, abs=(1e-11 * float(np.abs(values).max() + 1)) ** 2)
    assert error.lower_bound <= best * (1 + NOISE)


@pytest.mark.parametrize("name", ["gelu", "silu", "mish"])
@pytest.mark.parametrize("bits", [1, 4])
def test_proofs_are_as_close_as_asked(name: str, bits: int) -> None:
    error = fit_joint(get(name), bits).error
    assert 0 <= error.gap <= TARGET_GAP
    assert error.lower_bound <= error.total


def test_a_uniform_weight_and_a_kink() -> None:
    result = fit_joint(get("relu"), 2, weight=uniform(), domain=(-1.0, 1.0))
    # Zero up to the kink, and a third of [0, 1] for each other level: 3 ∫ (x - mean)² over 1/3 = 3 (1/3)³ / 12.
    assert result.error.derivative == 0.0
    assert result.error.output == pytest.approx(1 / 108, rel=1e-9)
    assert result.table.borders == pytest.approx([0.0, 1 / 3, 2 / 3], abs=1e-7)


@pytest.mark.parametrize(("name", "bits"), [("relu", 3), ("hardtanh", 4)])
def test_a_density_that_is_infinite_at_an_end_is_followed(name: str, bits: int) -> None:
    """Where f' is constant only the doubt about the weight makes cells finer."""
    error = fit_joint(get(name), bits, weight=named("beta(0.5,0.5)")).error
    assert error.gap <= 2 * TARGET_GAP


def test_a_code_for_each_sample_is_exact() -> None:
    result = fit_joint(get("gelu"), 3, weight=from_samples([-1.0, 0.3]))
    assert result.table.outputs.size == 2
    assert "error   0 to the digits of the levels" in as_table(result)
