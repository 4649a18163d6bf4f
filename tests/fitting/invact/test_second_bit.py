"""The second bit beside the output, which way y was rounded but for one y: its floors by brute force."""

import json
import math
from functools import cache
from itertools import product

import numpy as np
import pytest

from actfit.coefficients import load
from actfit.fitting.activations import from_expression, get, names
from actfit.fitting.errors import InputError
from actfit.fitting.invact.cut_output import CutOutput, moved
from actfit.fitting.invact.document import candidate_of, command, file_name, to_document
from actfit.fitting.invact.error_floor import information_floor, second_bit
from actfit.fitting.invact.inputs import every_input, on_right
from actfit.fitting.invact.judge import Judge
from actfit.fitting.invact.report import as_table
from actfit.fitting.invact.solve import fit
from actfit.fitting.weights import named

SIXTEEN = ("bfloat16", "float16")
CURVED = ("hardswish", "gelu", "gelu_tanh", "quick_gelu", "silu", "mish")
NORMAL = named("norm")


@cache
def floors(name, dtype):
    """With one bit, with which way y was rounded, and with one output cut elsewhere, as fits have it."""
    cut = second_bit(get(name), dtype, NORMAL)
    return tuple(information_floor(get(name), dtype, NORMAL, *options) for options in ((1,), (2,), (2, cut)))


@pytest.mark.parametrize(("name", "dtype"), list(product(CURVED, SIXTEEN)))
def test_each_bit_lowers_the_floor(name, dtype):
    one_bit, rounding, two_bits = floors(name, dtype)
    assert two_bits.rms < rounding.rms < one_bit.rms
    assert two_bits.linf <= rounding.linf <= one_bit.linf


@pytest.mark.parametrize(("name", "dtype"), list(product(CURVED, SIXTEEN)))
def test_the_cut_output_against_brute_force(name, dtype):
    """Of each output next to f(T), with every border between two inputs, none has a lower floor."""
    two_bits = floors(name, dtype)[2]
    cut, form = two_bits.cut, two_bits.format
    inputs = every_input(two_bits.split, form, NORMAL)
    assert all(value == np.float32(value) for value in cut)
    assert form.round(np.array([cut.output, cut.inner, cut.outer])).tolist() == [cut.output] * 3
    assert abs(cut.inner) < abs(cut.border) < abs(cut.outer)
    moves = moved(inputs.f, form, cut) != moved(inputs.f, form, None)
    assert np.array_equal(moves, form.round(inputs.f) == cut.output)
    rng, turn = np.random.default_rng(0), float(get(name).f(two_bits.split.border))
    near = inputs.f[(inputs.mass > 0) & (inputs.f < turn + 3 * form.spacing(np.array(turn)))]
    for border in rng.choice(near, 5, replace=False):
        output = float(form.round(border))
        elsewhere = CutOutput(output, border, output / 1.0001, output * 1.0001)
        other = information_floor(get(name), dtype, NORMAL, 2, elsewhere)
        assert other.rms >= two_bits.rms * (1 - 1e-9)


@pytest.mark.slow
def test_functions_without_a_turn_in_normal_numbers_have_no_cut_output():
    """Of x**2 the numbers next to f(T) = 0 are subnormal."""
    assert second_bit(from_expression("x**2"), "bfloat16", NORMAL) is None
    assert fit(from_expression("x**2"), "bfloat16", bits=2).error_floor.cut is None


@pytest.mark.parametrize(("name", "dtype"), list(product(CURVED, SIXTEEN)))
def test_shipped_formulas_err_as_they_say(name, dtype):
    """Over every x of the format, each weighed by the density: what the second bit's file states, and its floor."""
    document = load(name, f"invact-{dtype}-2bit")
    error, floor = document["error"], floors(name, dtype)[2]
    assert document["solution"]["cut"] == floor.cut._asdict()
    candidates = [candidate_of(branch) for branch in document["solution"]["branches"]]
    assert error["floor_rms"] == pytest.approx(floor.rms, rel=1e-9)
    assert error["floor_linf"] == pytest.approx(floor.linf, rel=1e-9)
    x = floor.format.numbers()
    z, right = floor.outputs(x), on_right(floor.split, x)
    q = np.where(right, candidates[1].float32(z), candidates[0].float32(z)).astype(np.float64)
    off = q - get(name).df(x)
    # exp2 in float32 is good to an ulp or two, which differ by machines: the verifier's own allowance.
    assert np.abs(off).max() == pytest.approx(error["linf"], abs=2.0**-22)
    low, high = NORMAL.domain
    mass = np.where((low <= x) & (x <= high), np.exp(-x * x / 2) * np.gradient(x), 0.0)
    assert math.sqrt(mass @ off**2 / mass.sum()) == pytest.approx(error["rms"], abs=2.0**-22)
    assert error["rms"] < load(name, f"invact-{dtype}")["error"]["rms"]


def test_the_judge_reads_the_moved_output():
    floor = floors("gelu", "bfloat16")[2]
    for index, cells in enumerate(floor.cells):
        assert np.array_equal(Judge(index, floor).outputs, cells.y)
        normal = cells.y[np.abs(cells.y) >= 2.0**floor.format.lowest]
        assert not np.isin(normal, floor.format.numbers()).any()


def test_a_fit_by_two_bits_says_so():
    fitted = fit(get("hardswish"), "float16", bits=2)
    document = to_document(fitted)
    assert document["options"]["bits"] == 2
    assert file_name(fitted) == "invact-float16-2bit"
    assert command(fitted) == "python -m fitting.invact --fn hardswish --dtype float16 --bits 2"
    assert json.loads(json.dumps(document["solution"])) == load("hardswish", "invact-float16-2bit")["solution"]
    cut = [f"{number:.8g}" for number in fitted.error_floor.cut]
    assert "at y = {}: f(x) is nearer to 0 than {}; q(y) is of {} if so, else {}".format(*cut) in as_table(fitted)
    assert "bits" not in to_document(fit(get("hardswish"), "float16"))["options"]


@pytest.mark.parametrize("name", sorted(set(names()) - set(CURVED)))
def test_functions_that_gain_nothing_are_refused(name):
    with pytest.raises(InputError, match=f"bits must be 1 for {name}, got 2: the second bit is for functions that"):
        information_floor(get(name), "bfloat16", NORMAL, bits=2)


def test_refusals():
    with pytest.raises(InputError, match="bits must be 1 in float32, got 2: f is computed in float32, so nothing"):
        information_floor(get("gelu"), "float32", NORMAL, bits=2)
    with pytest.raises(InputError, match="bits must be 1 or 2, got 3"):
        information_floor(get("gelu"), "bfloat16", NORMAL, bits=3)
