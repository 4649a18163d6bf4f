"""Emitted loops for CPUs against the formula in float64, and what Numba makes of them."""

import ast
import math
from importlib import import_module

import mpmath
import numpy as np
import pytest
import torch

from actfit.codegen.generated import FOLDER
from actfit.codegen.loops import _Scalars, loops_of
from actfit.codegen.subject import of_catalogue
from actfit.kernels.engine.from_output import derivative_from_output
from actfit.kernels.generated.functions import FUNCTIONS
from tests.kernels.specs import spec

numba = pytest.importorskip("numba")

TWO_BRANCHES = ("gelu", "gelu_tanh", "quick_gelu", "silu", "mish", "hardswish")
EXTREME = [math.nan, math.inf, 3e38, 0.0, -0.0, 1e-45, -1e-45]
# What a formula of some twenty operations moves by in float32.
MOVED = 2.0**-19


def of_both_branches(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Outputs and sides: those up to 0 on the left, all on the right; many near the minimum, and extreme ones."""
    least = np.float32(FUNCTIONS[name].minimum)
    near = least + np.float32(2.0) ** np.arange(-40, 5)
    right = np.concatenate([np.linspace(least, 12, 3001), near, [least], EXTREME]).astype(np.float32)
    left = np.concatenate([np.linspace(least, 0, 3001, dtype=np.float32), right[~(right > 0)]])
    return np.concatenate([left, right]), np.repeat([False, True], [len(left), len(right)])


def by_loop(name: str, y: np.ndarray, on_right: np.ndarray) -> np.ndarray:
    result = np.full_like(y, 9)
    import_module(f"actfit.kernels.generated.{name}_loops").from_output(y, on_right, result)
    return result


@pytest.mark.parametrize("name", TWO_BRANCHES)
def test_a_loop_gives_the_formula(name: str) -> None:
    y, on_right = of_both_branches(name)
    wide, sides = torch.from_numpy(y).double(), torch.from_numpy(on_right)
    expected = derivative_from_output(spec(name, "invact"), torch.float32, wide, sides, ()).numpy()
    got = by_loop(name, y, on_right)
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    assert np.nanmax(np.abs(got - expected)) <= MOVED


@pytest.mark.parametrize("name", TWO_BRANCHES)
def test_a_result_does_not_depend_on_its_neighbours(name: str) -> None:
    y, on_right = of_both_branches(name)
    whole = by_loop(name, y, on_right)
    for start, stop in ((0, 1), (1, 18), (40, 73)):
        part = slice(start, stop)
        assert by_loop(name, y[part], on_right[part]).tobytes() == whole[part].tobytes()


@pytest.mark.parametrize("name", ["gelu", *(pytest.param(name, marks=pytest.mark.slow) for name in TWO_BRANCHES[1:])])
def test_a_loop_has_vector_instructions(name: str) -> None:
    """A call, a check of a division or a number in float64 would keep Numba from them, and nothing else would tell."""
    loop = import_module(f"actfit.kernels.generated.{name}_loops").from_output
    again = numba.jit(**loop.targetoptions)(loop.py_func)  # a cached one has no text
    y, on_right = of_both_branches(name)
    again(y, on_right, np.empty_like(y))
    (text,) = again.inspect_llvm().values()
    assert " x float>" in text
    assert "double" not in text


def test_functions_without_two_fitted_branches_have_no_loop() -> None:
    with_loops = {name for name in FUNCTIONS if loops_of(of_catalogue(name)) is not None}
    assert with_loops == set(TWO_BRANCHES) == {path.stem.removesuffix("_loops") for path in FOLDER.glob("*_loops.py")}


def test_powers_of_two() -> None:
    """Off by the polynomial's 2**-26, by 2**-25 for each of its last two sums, and by twice that for the product."""
    loops = import_module("actfit.kernels.generated.gelu_loops")
    random = np.random.default_rng(0).uniform(-126, 127, 2000)
    x = np.float32([*random, *random / 100, *range(-126, 128), *np.arange(-3.5, 4)])
    got = [float(loops.exp2(number)) for number in x]
    for number, value in zip(x, got, strict=True):
        exact = mpmath.mpf(2) ** float(number)
        assert abs(value / exact - 1) <= 2.0**-26 + 2 * 2.0**-25 + 2.0**-24
    assert [float(loops.exp2(np.float32(end))) for end in (-300, -math.inf)] == [2.0**-126] * 2
    assert [float(loops.exp2(np.float32(end))) for end in (300, math.inf)] == [2.0**127] * 2
    assert math.isnan(loops.exp2(np.float32(math.nan)))


def test_what_has_no_counterpart_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be made of what is written for numbers, got tl\.erf"):
        _Scalars().visit(ast.parse("tl.erf(x)"))
