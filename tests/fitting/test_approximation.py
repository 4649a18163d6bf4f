"""Approximations of f' as numbers, stored and fitted here: their errors against known values."""

import numpy as np
import pytest

from actfit.coefficients import load
from actfit.fitting.activations import from_expression, get
from actfit.fitting.approximation import compare, few_bits, from_output
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.weights import named


def test_a_stored_table_is_taken_as_it_is() -> None:
    document = load("gelu", "fewbit-8bit")  # 47 s to make
    approximation = few_bits(get("gelu"), 8)
    assert approximation.error == document["error"]["l2_squared"]
    assert set(approximation.q) <= set(document["solution"]["levels"])
    assert (approximation.label, approximation.bits, approximation.domain) == ("by 8 bits, shared levels", 8, (-10, 10))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("levels", "weight", "domain"),
    [
        ("contiguous", "uniform", None),
        ("shared", "norm", None),
        ("best", "uniform", (-3.0, 5.0)),
        ("best", "norm", (0, 9)),
    ],
)
def test_other_tables_are_made(levels: str, weight: str, domain: tuple[float, float] | None) -> None:
    approximation = few_bits(get("silu"), 3, levels, named(weight), domain)
    exact = fit(get("silu"), 3, levels=levels, weight=named(weight), domain=domain)
    assert approximation.error == pytest.approx(exact.error.l2_squared, rel=1e-6)
    assert approximation.domain == exact.domain
    lo, hi = approximation.domain
    assert (lo, hi) == (approximation.x[0], approximation.x[-1])
    near = np.abs(approximation.x[:, None] - exact.steps.borders).min(axis=1) < 1e-4
    assert approximation.q[~near] == pytest.approx(exact.steps(approximation.x[~near]), abs=1e-5)


def test_parameters_and_own_functions_are_not_those_stored() -> None:
    soft = get("softplus", beta=2.0)
    assert few_bits(soft, 2).error == pytest.approx(fit(soft, 2).error.l2_squared, rel=1e-6)
    own = from_expression("x**2 + 1", "own")
    assert few_bits(own, 1, domain=(0, 1)).error == pytest.approx(4 / 12 / 4)
    for activation in (soft, own):
        refusal = f"^formulas of the output are stored .*, got {activation.name}; actfit invact"
        with pytest.raises(InputError, match=refusal):
            from_output(activation, "float16")


def test_another_function_of_a_known_name_is_not_the_known_one() -> None:
    parabola = from_expression("x**2", "gelu")
    approximation = few_bits(parabola, 3)
    # f' = 2x on [-10, 10] in 8 equal steps of 5: each errs by 5²/12 in the mean.
    assert approximation.error == pytest.approx(20 * 25 / 12, rel=1e-2)
    assert approximation.linf == pytest.approx(2.5, rel=1e-2)
    for paper in (False, True):
        with pytest.raises(InputError, match=r", got gelu"):
            from_output(parabola, "float16", paper=paper)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_largest_error_is_the_stored_one(dtype: str) -> None:
    for name in ("mish", "silu"):
        stored = load(name, f"invact-{dtype}")["error"]
        assert from_output(get(name), dtype).linf == pytest.approx(stored["linf"], rel=1e-6)
    assert few_bits(get("silu"), 3).linf == load("silu", "fewbit-3bit")["error"]["linf"]


def test_the_largest_error_is_that_of_the_domain() -> None:
    whole, part = (from_output(get("silu"), "bfloat16", domain=domain) for domain in ((-10.0, 10.0), (2.0, 5.0)))
    assert part.linf < whole.linf / 2
    assert part.linf == pytest.approx(np.abs(part.derivative - part.q).max(), rel=1e-2)
    # Of x² only far out: float32 stores the outputs near 1000 as coarsely as that.
    assert 0 < from_output(get("relu2"), "float32").linf < load("relu2", "invact-float32")["error"]["linf"] / 2


@pytest.mark.parametrize(("name", "dtype"), [("gelu", "bfloat16"), ("silu", "float16"), ("tanh", "float32")])
def test_stored_formulas_have_the_stored_error(name: str, dtype: str) -> None:
    stored = load(name, f"invact-{dtype}")
    approximation = from_output(get(name), dtype, named("norm"))
    assert approximation.error == pytest.approx(stored["error"]["rms"] ** 2, rel=1e-6)  # the mass of N(0, 1) is 1
    assert approximation.bits == len(stored["solution"]["branches"]) - 1
    assert approximation.error_floor is not None
    assert approximation.error_floor.rms == pytest.approx(stored["error"]["floor_rms"], rel=1e-9)
    assert np.abs(approximation.derivative - approximation.q).max() <= stored["error"]["linf"] * (1 + 1e-9)


def test_a_domain_must_be_one() -> None:
    with pytest.raises(InputError, match=r"^domain must be two finite numbers, the lower first, got 3 3$"):
        few_bits(get("gelu"), 2, domain=(3.0, 3.0))


def test_comparisons() -> None:
    comparison = compare(get("sigmoid"), [1, 2])
    assert comparison.printed == {1: 0.0181, 2: 0.0038}
    # Table 1 prints four decimals, of tables of |x|, which are shared ones.
    assert comparison.shared == pytest.approx(comparison.printed, abs=1e-4)
    assert all(comparison.contiguous[bits] > comparison.shared[bits] for bits in (1, 2))
    assert (comparison.outputs["bfloat16"][0], comparison.paper) == (0, {})
    silu = compare(get("silu"), [1], ["float16"])
    assert (silu.outputs["float16"][0], silu.paper["float16"][0]) == (1, 1)
