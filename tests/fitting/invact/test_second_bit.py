"""The second bit beside the output, which way y was rounded but for one y: its floors by brute force."""

import json
import math
from collections import defaultdict
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actfit.coefficients import load
from actfit.fitting.activations import from_expression, get, names
from actfit.fitting.errors import InputError
from actfit.fitting.invact.branches import split
from actfit.fitting.invact.cut_output import CutOutput, moved
from actfit.fitting.invact.document import candidate_of, command, file_name, to_document
from actfit.fitting.invact.error_floor import information_floor, second_bit
from actfit.fitting.invact.formats import FORMATS, Format
from actfit.fitting.invact.inputs import every_input, on_right
from actfit.fitting.invact.judge import Judge
from actfit.fitting.invact.report import as_table
from actfit.fitting.invact.solve import fit
from actfit.fitting.invact.sweep import shipped
from actfit.fitting.weights import named

SIXTEEN = ("bfloat16", "float16")
CURVED = ("hardswish", "gelu", "gelu_tanh", "quick_gelu", "silu", "mish")
NORMAL = named("norm")


@pytest.mark.parametrize("dtype", SIXTEEN)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_moved_output_is_within_a_quarter_of_the_spacing(dtype, seed):
    """Of any number: float32's patterns are equally likely. By Sterbenz the differences are exact."""
    form = FORMATS[dtype]
    bits = np.random.default_rng(seed).integers(0, 2**32, 20_000, dtype=np.uint32)
    with np.errstate(invalid="ignore"):  # signalling NaN
        values = bits.view(np.float32).astype(np.float64)
    values = values[np.abs(values) <= form.largest]
    moved, y = form.finer(values), form.round(values)
    normal = np.abs(y) >= 2.0**form.lowest
    quarter = form.spacing(y) / 4
    assert (np.abs(moved - values)[normal] <= quarter[normal]).all()
    assert (np.abs(moved - values) <= 2 * quarter).all()  # of those that are moved by less
    assert np.array_equal(form.round(moved), y)
    back, on = np.abs(values) < np.abs(y), np.abs(values) > np.abs(y)
    assert (np.abs(moved) < np.abs(y))[normal & back].all()
    assert (np.abs(moved) > np.abs(y))[normal & on].all()
    assert np.array_equal(form.finer(-values), -moved)
    order = np.argsort(values)
    assert (np.diff(moved[order]) >= 0).all()


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_ends_of_the_moved_output(dtype):
    """Zero, exact numbers, powers of two, below which numbers are twice as dense, infinities and NaN."""
    form = FORMATS[dtype]
    ulp = 2.0 ** (1 - form.precision)
    assert form.finer(np.array([1.0, 1.0 + ulp / 2**9, 1.0 - ulp / 2**9])).tolist() == [
        *[1.0 + ulp / 4] * 2,
        1.0 - ulp / 4,
    ]
    assert form.finer(np.array(-1.5 + ulp / 3)).tolist() == -1.5 + ulp / 4
    assert form.finer(np.array([math.inf, -math.inf, 0.0, -0.0])).tolist() == [math.inf, -math.inf, 0.0, 0.0]
    assert np.isnan(form.finer(np.array([form.largest * 1.01]))).all()  # infinity minus some of it
    assert np.isnan(form.finer(np.array([math.nan]))).all()
    assert form.finer(np.ones((2, 0, 3))).shape == (2, 0, 3)


TINY = Format("tiny", 5, -6, 5)  # 5 bits: 382 numbers up to 31


def groups_of(activation, form, weigh):
    """f' and mass of every number of the format, by (y, branch, rounded away): plain Python."""
    parts, groups = split(activation), defaultdict(list)
    for x in form.numbers().tolist():
        exact, derivative = float(activation.f(x)), float(activation.df(x))
        y = float(form.round(exact))
        if math.isfinite(y) and math.isfinite(derivative):
            groups[y, bool(on_right(parts, np.array(x))), abs(exact) < abs(y)].append((weigh(x), derivative))
    return groups


@pytest.mark.parametrize("text", ["x*sigmoid(x)", "x**2", "2*x*Phi(-x)", "x**4/8 + x"])
def test_brute_force_on_a_small_format(text, monkeypatch):
    """The floor over a dictionary of every y and both bits; each x weighs alike."""
    monkeypatch.setitem(FORMATS, "tiny", TINY)
    activation = from_expression(text)
    floor = information_floor(activation, "tiny", NORMAL, bits=2)
    x = TINY.numbers()
    masses = dict(zip(x.tolist(), np.exp(-x * x / 2) * np.gradient(x), strict=True))
    groups = groups_of(activation, TINY, lambda value: masses[value] * (abs(value) <= NORMAL.domain[1]))
    total, square, worst = 0.0, 0.0, 0.0
    for group in groups.values():
        mass = sum(weight for weight, _ in group)
        if mass:
            mean = sum(weight * derivative for weight, derivative in group) / mass
            square += sum(weight * (derivative - mean) ** 2 for weight, derivative in group)
        total += mass
        worst = max(worst, (max(d for _, d in group) - min(d for _, d in group)) / 2)
    assert floor.linf == pytest.approx(worst, rel=1e-14)
    assert floor.rms == pytest.approx(math.sqrt(square / total), rel=1e-11)  # the weight's domain leaves out 1e-12
    assert sum(len(cells.y) for cells in floor.cells) == len(groups)


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
    for border in rng.choice(near, 12, replace=False):
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


def test_files_shipped_with_two_bits():
    assert {(task.name, task.dtype) for task in shipped() if task.bits == 2} == set(product(CURVED, SIXTEEN))
    assert [task for task in shipped(("float32",)) if task.bits == 2] == []


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
