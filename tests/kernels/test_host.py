"""The operations made for tensors on a CPU agree with the plain ones, for every kind of number."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from actfit.kernels.engine import from_output, host, planes, reference
from actfit.kernels.engine.elements import DTYPES, table_of, torch_elements, widened
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.stock import STOCK
from tests.kernels.specs import spec

SIXTEEN = (torch.bfloat16, torch.float16)
SPECIAL = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1e-45, -1e-45, 1e-310]
numbers = st.lists(st.floats(-4, 4, width=32) | st.sampled_from(SPECIAL), min_size=1, max_size=70)


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether tensors are equal bit for bit, except for the payload of NaNs."""
    return torch.equal(torch.isnan(a), torch.isnan(b)) and a.nan_to_num().tolist() == b.nan_to_num().tolist()


@given(st.integers(1, 8), st.integers(1, 200), st.integers(0, 9))
def test_planes_are_those_of_plain_operations(bits: int, count: int, seed: int) -> None:
    codes = torch.randint(0, 1 << bits, (count,), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    packed = host.pack(codes, bits)
    assert torch.equal(packed, planes.pack(codes, bits))
    assert torch.equal(host.unpack(packed, count), codes)
    assert torch.equal(host.pack(codes > 1, 1), planes.pack((codes > 1).to(torch.uint8), 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(numbers, st.randoms(use_true_random=False))
def test_where_chooses_whole_numbers(dtype, values, random) -> None:
    first = torch.tensor(values, dtype=dtype)
    second, condition = first.flip(0), torch.tensor([random.random() < 0.5 for _ in values])
    assert equal(host.where(condition, first, second), torch.where(condition, first, second))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_stock_and_the_emitted_forward_are_one_function(name, dtype) -> None:
    """So the emitted formula need not run if the result has no NaN; in 16 bits, if it is a single operation."""
    params = tuple(FUNCTIONS[name].parameters.values())
    x = (3 * torch.randn(1003, generator=torch.Generator().manual_seed(0))).to(dtype)
    x[:4] = torch.tensor([0.0, -0.0, 30.0, -30.0])
    x = x if FUNCTIONS[name].rounds_once else widened(x)
    assert torch.equal(STOCK[name](x, *params), torch_elements(name).forward(x, params))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_infinity_changes_nothing_beside_it(name, dtype) -> None:
    params = tuple(FUNCTIONS[name].parameters.values())
    x = (3 * torch.randn(1003, generator=torch.Generator().manual_seed(0))).to(dtype)
    kernel = spec(name, "forward-ad")
    finite, _ = reference.forward(kernel, x, params)
    x[[5, 700]] = -math.inf
    y, saved = reference.forward(kernel, x, params)
    others = torch.isfinite(x)
    assert torch.equal(y[others], finite[others])
    assert not torch.isnan(y).any()
    assert not torch.isnan(saved).any()


@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
@pytest.mark.parametrize("method", ["forward-ad", "invact-sign-bit"])
@pytest.mark.parametrize("name", ["gelu", "silu", "hardswish"])
def test_what_a_table_gives_is_what_is_computed(name, method, dtype, monkeypatch) -> None:
    """Of all numbers of the dtype, against the same in float32, as on a device without tables."""
    kernel, x = spec(name, method), host.all_values(dtype)
    y, saved = reference.forward(kernel, x, ())
    dx = reference.backward(kernel, torch.ones_like(x), None, saved, ())
    monkeypatch.setattr(reference, "on_host", lambda _: False)
    assert equal(saved, reference.forward(kernel, x, ())[1])
    monkeypatch.undo()
    if method != "forward-ad":
        monkeypatch.setattr("actfit.kernels.engine.from_output.on_host", lambda _: False)
    assert equal(dx, reference.backward(kernel, torch.ones_like(x), None, saved, ()))
    assert equal(y, reference.forward(kernel, x, ())[0])


@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
@pytest.mark.parametrize("bits", range(1, 9))
def test_every_16_bit_code_is_that_of_its_interval(bits, dtype) -> None:
    """And so is its level in backward, for a count that fills no whole byte."""
    kernel, x = spec("gelu", "fewbit", bits), host.all_values(dtype)[:-3]
    _, saved = reference.forward(kernel, x, ())
    table = table_of(kernel)
    interval = np.searchsorted(table.borders, x.double().numpy(), side="left")
    interval[torch.isnan(x).numpy()] = 0
    codes = np.asarray(table.codes)[interval]
    assert planes.unpack(saved, len(x)).numpy().tolist() == codes.tolist()
    dx = reference.backward(kernel, torch.ones_like(x), None, saved, ())
    assert torch.equal(dx, torch.tensor(table.levels)[torch.from_numpy(codes)].to(dtype))


@pytest.mark.parametrize("count", [1, 5, 4000])
@pytest.mark.parametrize("method", ["invact", "invact-precision-bit"])
def test_loops_run_in_threads_and_may_be_missing(count: int, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    neighbours = pytest.importorskip("actfit.kernels.engine.neighbours", reason="Numba is not installed")
    x, grad = torch.randn(2, count, generator=torch.Generator().manual_seed(0))
    kernel = spec("gelu", method)
    y, saved = reference.forward(kernel, x, ())
    with monkeypatch.context() as patch:
        patch.setattr(from_output, "derivative_from_output", None)  # loops do without it
        dx = reference.backward(kernel, grad, y, saved, ())
        patch.setattr(torch, "get_num_threads", lambda: 3)
        patch.setattr(neighbours, "LEAST", 1000)
        assert torch.equal(reference.backward(kernel, grad, y, saved, ()), dx)
    monkeypatch.setattr(from_output.host, "loops", lambda: None)
    without = reference.backward(kernel, grad, y, saved, ())
    # A formula of some twenty operations moves by 2**-19 at most in float32: each of the two.
    torch.testing.assert_close(without / grad, dx / grad, rtol=0, atol=2 * 2.0**-19)


def test_loops_do_not_run_as_plain_python() -> None:
    """They would take a hundred times as long as PyTorch's operations."""
    code = "from actfit.kernels.engine import host; print(host.loops())"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@given(st.lists(st.floats(-4, 4, width=32) | st.sampled_from(SPECIAL), min_size=1, max_size=70))
def test_codes_of_tables_without_numba(dtype: torch.dtype, values: list[float]) -> None:
    """With the borders of each dtype: between one of them and the largest float32 below, only float64 has numbers."""
    kernel = spec("gelu", "fewbit", bits=3)
    borders = torch.tensor(table_of(kernel).borders, dtype=torch.float64)
    x = torch.cat([torch.tensor(values, dtype=torch.float64), borders]).to(dtype)
    codes = reference.forward(kernel, x, ())[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "loops", lambda: None)
        assert torch.equal(reference.forward(kernel, x, ())[1], codes)
    interval = torch.bucketize(x.double().nan_to_num(-math.inf, math.inf, -math.inf), borders)
    expected = torch.tensor(table_of(kernel).codes, dtype=torch.uint8)[interval]
    assert torch.equal(planes.unpack(codes, len(x)), expected)
