"""The stored formats, bit for bit as torch and numpy round, and a second bit of how an output was rounded."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actfit.fitting.activations import get
from actfit.fitting.errors import InputError
from actfit.fitting.invact.error_floor import information_floor
from actfit.fitting.invact.formats import FORMATS, get_format
from actfit.fitting.weights import uniform

INF = math.inf
TORCH = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
SIXTEEN = ("bfloat16", "float16")


def by_torch(values, name):
    """float32 numbers rounded by torch, as float64."""
    return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(TORCH[name]).double().numpy()


def same_bits(a, b):
    """Equal, zeros by sign, NaN as NaN."""
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(
        np.signbit(a)[~np.isnan(a)], np.signbit(b)[~np.isnan(b)]
    )


@pytest.mark.parametrize("name", SIXTEEN)
def test_rounding_of_ties_and_their_neighbours_is_that_of_torch(name):
    """The middle of every pair of adjacent numbers, and the float32 on both sides of it; past the largest, inf."""
    form = FORMATS[name]
    numbers = form.numbers()
    beyond = form.largest + form.spacing(np.array(form.largest))
    numbers = np.concatenate([[-beyond], numbers, [beyond]]).astype(np.float64)
    with np.errstate(over="ignore"):
        middles = (numbers[1:] / 2 + numbers[:-1] / 2).astype(np.float32)
        values = np.concatenate(
            [middles, np.nextafter(middles, np.float32(INF)), np.nextafter(middles, np.float32(-INF))]
        )
    rounded = form.round(values.astype(np.float64))
    assert same_bits(rounded, by_torch(values, name))
    assert np.isinf(rounded).any()


@pytest.mark.parametrize("name", FORMATS)
def test_float64_is_rounded_once(name):
    """A hair above a tie: rounding to float32 first would land on the tie, and that would go to even, down."""
    form = FORMATS[name]
    ulp = 2.0 ** (1 - form.precision)
    above = 1 + ulp / 2 + 2.0**-50
    below = 1 + 3 * ulp / 2 - 2.0**-50
    assert form.round(np.array([above, below, -above])).tolist() == [1 + ulp, 1 + ulp, -1 - ulp]
    if name != "float32":
        assert by_torch([above, below], name).tolist() == [1.0, 1 + 2 * ulp]  # what twice rounding makes of them


@pytest.mark.parametrize("name", ["float16", "float32"])
@settings(max_examples=50)
@given(seed=st.integers(0, 2**32 - 1))
def test_rounding_of_float64_is_that_of_numpy(name, seed):
    """numpy converts float64 to these two directly: random bits, exponents near the formats' own."""
    rng, form = np.random.default_rng(seed), FORMATS[name]
    exponents = rng.integers(form.lowest - 30, form.highest + 2, 2000)
    values = np.ldexp(rng.uniform(-2, 2, 2000), exponents)
    values = np.concatenate([values, form.round(values), form.round(values) * (1 + 2.0**-form.precision)])
    with np.errstate(over="ignore", invalid="ignore"):
        assert same_bits(form.round(values), values.astype(name).astype(np.float64))


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_keeps_numbers_zeros_and_the_extraordinary(name):
    form = FORMATS[name]
    special = np.array([0.0, -0.0, INF, -INF, math.nan, form.largest, -form.largest])
    assert same_bits(form.round(special), special)
    assert form.largest == torch.finfo(TORCH[name]).max
    smallest = torch.finfo(TORCH[name]).tiny * 2.0 ** (1 - form.precision)
    assert same_bits(form.round(np.array([smallest, smallest / 2, -smallest / 2])), np.array([smallest, 0.0, -0.0]))
    half = form.largest + form.spacing(np.array(form.largest)) / 2
    assert form.round(np.array([half, np.nextafter(half, 0)])).tolist() == [INF, form.largest]
    assert form.round(np.array(1.0)).shape == ()
    assert form.round(np.ones((2, 0, 3))).shape == (2, 0, 3)


@pytest.mark.parametrize("name", SIXTEEN)
def test_numbers_are_complete(name):
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    every = bits.view(TORCH[name]).double().numpy()
    assert np.array_equal(FORMATS[name].numbers(), np.unique(every[np.isfinite(every)]))


@pytest.mark.parametrize("name", FORMATS)
def test_spacing_is_the_step_to_the_next_number(name):
    form = FORMATS[name]
    finfo = torch.finfo(TORCH[name])
    at = np.array([1.0, 1.9, -2.0, finfo.tiny, finfo.tiny / 2, 0.0])
    unit = finfo.eps
    assert form.spacing(at).tolist() == [unit, unit, 2 * unit, *[finfo.tiny * unit] * 3]


def test_a_format_that_is_too_large_or_unknown_is_refused():
    with pytest.raises(ValueError, match="float32 has too many numbers to list"):
        FORMATS["float32"].numbers()
    with pytest.raises(InputError, match=r"dtype must be one of bfloat16, float16, float32, got 'float15'; .*float16"):
        get_format("float15")
    with pytest.raises(InputError, match="dtype must be one of"):
        information_floor(get("silu"), "half", uniform())


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
